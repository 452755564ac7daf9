#include "ops/vec_avx2.h"
// The lanes come first: the next headers compute on them.
#include "ops/kernel_tables.h"
#include "ops/kv_impl.h"

namespace ridgeline {

const KvKernels& kv_avx2() {
  static const KvKernels kernels{write_kv, "kv avx2"};
  return kernels;
}

}  // namespace ridgeline
