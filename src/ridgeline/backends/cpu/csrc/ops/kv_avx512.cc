#include "ops/vec_avx512.h"
// The lanes come first: the next headers compute on them.
#include "ops/kernel_tables.h"
#include "ops/kv_impl.h"

namespace ridgeline {

const KvKernels& kv_avx512() {
  static const KvKernels kernels{write_kv, "kv avx512"};
  return kernels;
}

}  // namespace ridgeline
