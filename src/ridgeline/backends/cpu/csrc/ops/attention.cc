#include "ops/attention.h"

#include "ops/vec_portable.h"
// The lanes come first: the next headers compute on them.
#include "ops/attention_impl.h"
#include "ops/kernel_tables.h"

namespace ridgeline {

const AttentionKernels& attention_kernels(Isa isa) {
  static const AttentionKernels portable = make_attention("attention portable, 256-key segments");
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Bf16) return attention_avx512_bf16();
  if (isa >= Isa::kAvx512) return attention_avx512();
  if (isa == Isa::kAvx2) return attention_avx2();
#endif
  (void)isa;
  return portable;
}

}  // namespace ridgeline
