#include "ops/elementwise.h"

#include "ops/vec_portable.h"
// The lanes come first: the next headers compute on them.
#include "ops/elementwise_impl.h"
#include "ops/kernel_tables.h"

namespace ridgeline {

const ElementwiseKernels& elementwise_kernels(Isa isa) {
  static const ElementwiseKernels portable = make_elementwise("rows portable x8");
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return elementwise_avx512();
  if (isa == Isa::kAvx2) return elementwise_avx2();
#endif
  (void)isa;
  return portable;
}

}  // namespace ridgeline
