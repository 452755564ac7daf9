// exp, tanh and the activations on lanes of `Vec`, one formula each; relative error 1-2 units in the last place. NaN stays NaN.
// Polynomials: S. Moshier's Cephes library (public constants of expf, tanhf, erfcf).
#pragma once
#include <cstdint>

namespace ridgeline {
namespace {

using Reg = Vec::Reg;

inline Reg constant(float x) { return Vec::set1(x); }

// Horner, highest power first.
template <int N>
inline Reg polynomial(Reg x, const float (&coefficients)[N]) {
  Reg y = constant(coefficients[0]);
  for (int i = 1; i < N; ++i) y = Vec::fma(y, x, constant(coefficients[i]));
  return y;
}

// 0 below -87.33 (where floats become denormal), infinite from 88.38 on.
inline Reg exp_lanes(Reg x) {
  static constexpr float kTerms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  const Reg low = constant(-87.33f);
  const Vec::Mask tiny = Vec::less(x, low);
  const Reg y = Vec::max(low, Vec::min(constant(89.0f), x));
  const Reg n = Vec::round(Vec::mul(y, constant(1.44269504088896341f)));
  const Reg r = Vec::fnma(n, constant(-2.12194440e-4f), Vec::fnma(n, constant(0.693359375f), y));
  const Reg p = Vec::add(Vec::fma(polynomial(r, kTerms), Vec::mul(r, r), r), constant(1.0f));
  return Vec::select(tiny, Vec::zero(), Vec::mul(p, Vec::pow2(n)));
}

inline Reg tanh_lanes(Reg x) {
  static constexpr float kTerms[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
  const Reg size = Vec::abs(x), square = Vec::mul(x, x);
  const Reg near = Vec::fma(Vec::mul(polynomial(square, kTerms), square), x, x);
  const Reg e = exp_lanes(Vec::add(size, size));
  const Reg far = Vec::sub(constant(1.0f), Vec::div(constant(2.0f), Vec::add(e, constant(1.0f))));
  return Vec::select(Vec::less(size, constant(0.625f)), near, Vec::copy_sign(far, x));
}

// x / (1 + exp(-y)): the logistic function of y times x.
inline Reg times_sigmoid(Reg x, Reg y) { return Vec::div(x, Vec::add(constant(1.0f), exp_lanes(Vec::sub(Vec::zero(), y)))); }

// The complementary error function: a series in x^2 near 0, exp(-x^2) times one in 1/x beyond.
inline Reg erfc_lanes(Reg x) {
  static constexpr float kNear[] = {7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f, -2.685381193529856e-2f,
                                    1.128358514861418e-1f, -3.761262582423300e-1f, 1.128379165726710e+0f};
  static constexpr float kMiddle[] = {2.326819970068386e-2f,  -1.387039388740657e-1f, 3.687424674597105e-1f,
                                      -5.824733027278666e-1f, 6.210004621745983e-1f,  -4.944515323274145e-1f,
                                      3.404879937665872e-1f,  -2.741127028184656e-1f, 5.638259427386472e-1f};
  static constexpr float kFar[] = {-1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f, 2.921019019210786e+0f,
                                   -1.015265279202700e+0f, 4.218463358204948e-1f, -2.820767439740514e-1f, 5.641895067754075e-1f};
  // Beyond 14 the tail is 0 in floats; the bound keeps the square finite.
  const Reg one = constant(1.0f), size = Vec::min(constant(14.0f), Vec::abs(x)), square = Vec::mul(size, size);
  const Reg near = Vec::fnma(x, polynomial(square, kNear), one);
  const Reg inverse = Vec::div(one, Vec::max(one, size)), inverse_square = Vec::mul(inverse, inverse);
  const Reg series = Vec::select(Vec::less(size, constant(2.0f)), polynomial(inverse_square, kMiddle), polynomial(inverse_square, kFar));
  // exp(-x^2) loses digits when x^2 is rounded first: the rounding error of the square is put back.
  const Reg error = Vec::sub(Vec::zero(), Vec::fma(size, size, Vec::sub(Vec::zero(), square)));
  const Reg e = exp_lanes(Vec::sub(Vec::zero(), square));
  const Reg tail = Vec::mul(Vec::mul(Vec::fma(e, error, e), inverse), series);
  const Reg far = Vec::select(Vec::less(x, Vec::zero()), Vec::sub(constant(2.0f), tail), tail);
  return Vec::select(Vec::less(size, one), near, far);
}

inline Reg softcap_lanes(Reg x, Reg cap, Reg inverse) { return Vec::mul(cap, tanh_lanes(Vec::mul(x, inverse))); }

}  // namespace
}  // namespace ridgeline
