// The row kernels on lanes of `Vec`; included once per instruction set, after its vec_*.h.
#pragma once
#include <cstdint>

#include "ops/elementwise.h"
#include "ops/math_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kLanes = Vec::kLanes;

template <typename F>
inline void map1(const float* x, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Vec::store(out + i, f(Vec::load(x + i)));
  if (i < n) Vec::store_n(out + i, f(Vec::load_n(x + i, n - i)), n - i);
}

template <typename F>
inline void map2(const float* a, const float* b, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Vec::store(out + i, f(Vec::load(a + i), Vec::load(b + i)));
  if (i < n) Vec::store_n(out + i, f(Vec::load_n(a + i, n - i), Vec::load_n(b + i, n - i)), n - i);
}

void normalize(const float* x, const float* weight, float* out, int64_t n, float eps) {
  Reg sums[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Reg v = Vec::load(x + i + j * kLanes);
      sums[j] = Vec::fma(v, v, sums[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const Reg v = Vec::load_n(x + i, n - i);
    sums[j] = Vec::fma(v, v, sums[j]);
  }
  const float total = Vec::sum(Vec::add(Vec::add(sums[0], sums[2]), Vec::add(sums[1], sums[3])));
  const Reg inverse = constant(1.0f / __builtin_sqrtf(total / static_cast<float>(n) + eps));
  map2(x, weight, out, n, [&](Reg v, Reg w) { return Vec::mul(Vec::mul(v, inverse), w); });
}

void add_norm(const float* a, const float* b, const float* weight, float* total, float* out, int64_t n, float eps) {
  map2(a, b, total, n, [](Reg x, Reg y) { return Vec::add(x, y); });
  normalize(total, weight, out, n, eps);
}

void add(const float* a, const float* b, float* out, int64_t n) {
  map2(a, b, out, n, [](Reg x, Reg y) { return Vec::add(x, y); });
}

void mul(const float* a, const float* b, float* out, int64_t n) {
  map2(a, b, out, n, [](Reg x, Reg y) { return Vec::mul(x, y); });
}

void scale(const float* x, float factor, float* out, int64_t n) {
  const Reg f = constant(factor);
  map1(x, out, n, [&](Reg v) { return Vec::mul(v, f); });
}

inline Reg silu(Reg x) { return times_sigmoid(x, x); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3)
inline Reg gelu_tanh(Reg x) {
  const Reg cube = Vec::mul(Vec::mul(x, x), x);
  return times_sigmoid(x, Vec::mul(constant(1.5957691216057308f), Vec::fma(constant(0.044715f), cube, x)));
}

inline Reg gelu(Reg x) { return Vec::mul(Vec::mul(constant(0.5f), x), erfc_lanes(Vec::mul(x, constant(-0.70710678118654752f)))); }

inline Reg relu(Reg x) { return Vec::max(Vec::zero(), x); }

// Calls `use` with the activation as a function of lanes.
template <typename Use>
inline void with_activation(ActivationKind kind, Use use) {
  switch (kind) {
    case ActivationKind::kSilu:
      return use([](Reg x) { return silu(x); });
    case ActivationKind::kGeluTanh:
      return use([](Reg x) { return gelu_tanh(x); });
    case ActivationKind::kGelu:
      return use([](Reg x) { return gelu(x); });
    case ActivationKind::kRelu:
      return use([](Reg x) { return relu(x); });
  }
}

void activation(ActivationKind kind, const float* x, float* out, int64_t n) {
  with_activation(kind, [&](auto f) { map1(x, out, n, f); });
}

void gated(ActivationKind kind, const float* gate, const float* up, float* out, int64_t n) {
  with_activation(kind, [&](auto f) { map2(gate, up, out, n, [&](Reg g, Reg u) { return Vec::mul(f(g), u); }); });
}

void softcap(const float* x, float cap, float* out, int64_t n) {
  const Reg c = constant(cap), inverse = constant(1.0f / cap);
  map1(x, out, n, [&](Reg v) { return softcap_lanes(v, c, inverse); });
}

void rope(const float* x, const float* cosine, const float* sine, float* out, int64_t head_dim, int64_t r) {
  for (int64_t i = 0; i < r; i += kLanes) {
    const int64_t left = r - i;
    const Reg c = Vec::load_n(cosine + i, left), s = Vec::load_n(sine + i, left);
    const Reg low = Vec::load_n(x + i, left), high = Vec::load_n(x + r + i, left);
    Vec::store_n(out + i, Vec::fnma(high, s, Vec::mul(low, c)), left);
    Vec::store_n(out + r + i, Vec::fma(low, s, Vec::mul(high, c)), left);
  }
  if (out != x) map1(x + 2 * r, out + 2 * r, head_dim - 2 * r, [](Reg v) { return v; });
}

ElementwiseKernels make_elementwise(const char* name) {
  return {normalize, add_norm, add, mul, scale, activation, gated, softcap, rope, name};
}

}  // namespace
}  // namespace ridgeline
