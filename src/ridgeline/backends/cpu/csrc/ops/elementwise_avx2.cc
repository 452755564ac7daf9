#include "ops/vec_avx2.h"
// The lanes come first: the next headers compute on them.
#include "ops/elementwise_impl.h"
#include "ops/kernel_tables.h"

namespace ridgeline {

const ElementwiseKernels& elementwise_avx2() {
  static const ElementwiseKernels kernels = make_elementwise("rows avx2 x8");
  return kernels;
}

}  // namespace ridgeline
