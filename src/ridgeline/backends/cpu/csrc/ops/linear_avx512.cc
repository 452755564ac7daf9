// Linear kernels for avx512.
#include "ops/linear_internal.h"

namespace ridgeline {

const LinearKernels* linear_kernels_avx512(Encoding) { return nullptr; }

}  // namespace ridgeline
