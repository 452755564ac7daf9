#include "ops/vec_avx2.h"
// The lanes come first: the next headers compute on them.
#include "ops/attention_impl.h"
#include "ops/kernel_tables.h"

namespace ridgeline {

const AttentionKernels& attention_avx2() {
  static const AttentionKernels kernels = make_attention("attention avx2, 256-key segments");
  return kernels;
}

}  // namespace ridgeline
