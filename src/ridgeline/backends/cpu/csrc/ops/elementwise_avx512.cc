#include "ops/vec_avx512.h"
// The lanes come first: the next headers compute on them.
#include "ops/elementwise_impl.h"
#include "ops/kernel_tables.h"

namespace ridgeline {

const ElementwiseKernels& elementwise_avx512() {
  static const ElementwiseKernels kernels = make_elementwise("rows avx512 x16");
  return kernels;
}

}  // namespace ridgeline
