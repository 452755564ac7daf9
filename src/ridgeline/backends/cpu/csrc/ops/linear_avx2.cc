// Linear kernels for avx2.
#include "ops/linear_internal.h"

namespace ridgeline {

const LinearKernels* linear_kernels_avx2(Encoding) { return nullptr; }

}  // namespace ridgeline
