#include "ops/vec_avx512.h"
// The lanes come first: the next headers compute on them.
#include "ops/attention_impl.h"
#include "ops/kernel_tables.h"

namespace ridgeline {

const AttentionKernels& attention_avx512_bf16() {
  static const AttentionKernels kernels = make_attention("attention avx512_bf16, pairs of bfloat16 keys and values, 256-key segments");
  return kernels;
}

}  // namespace ridgeline
