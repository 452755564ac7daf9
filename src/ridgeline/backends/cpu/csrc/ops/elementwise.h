// Work on single token rows: norms, activations, residuals, rotary embedding. Each function sees one row (or a slice of it) and
// gives the same bits for it whatever else the step holds.
#pragma once
#include <cstdint>

#include "isa/isa.h"

namespace ridgeline {

enum class ActivationKind : int32_t { kSilu = 0, kGeluTanh = 1, kGelu = 2, kRelu = 3 };

// Outputs may be the inputs themselves, never a shifted overlap.
struct ElementwiseKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight.  x, weight, out [n]
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t n, float eps);
  // total = a + b; out = rms_norm(total)
  void (*add_norm)(const float* a, const float* b, const float* weight, float* total, float* out, int64_t n, float eps);
  void (*add)(const float* a, const float* b, float* out, int64_t n);
  void (*mul)(const float* a, const float* b, float* out, int64_t n);
  void (*scale)(const float* x, float factor, float* out, int64_t n);
  void (*activation)(ActivationKind kind, const float* x, float* out, int64_t n);
  // out = f(gate) * up
  void (*gated)(ActivationKind kind, const float* gate, const float* up, float* out, int64_t n);
  // out = cap * tanh(x / cap), finite for every x but NaN
  void (*softcap)(const float* x, float cap, float* out, int64_t n);
  // One head: (x[i], x[i + r]) turned by the angle whose cosine and sine are given, [r] each; dimensions from 2r on are copied.
  void (*rope)(const float* x, const float* cosine, const float* sine, float* out, int64_t head_dim, int64_t r);
  const char* name;
};

const ElementwiseKernels& elementwise_kernels(Isa isa);

}  // namespace ridgeline
