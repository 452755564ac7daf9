// The exactly defined arithmetic of sampling: ridgeline/sampling/exact.py, operation by operation. Needs -ffp-contract=off.
#pragma once
#include <cstdint>
#include <cstring>

namespace ridgeline::exact {

constexpr int kWeightBits = 43;
constexpr float kWeightCutoff = -30.0f;
constexpr double kMaxNoise = 36.75;  // -log(2^-53) rounded up
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// round(exp(x) * 2^43) for x <= 0, 0 below the cutoff. Branch-free, so that loops over it become SIMD.
inline int64_t weight(float x) {
  constexpr float kRound = 12582912.0f;
  // A mask from the sign of x - cutoff: a comparison here would make GCC branch.
  uint32_t inside = ~uint32_t(bits_as<int32_t>(x - kWeightCutoff) >> 31);
  float y = bits_as<float>(bits_as<uint32_t>(x) & inside);
  float shifted = y * 1.4426950408889634f + kRound;
  float n = shifted - kRound;
  float r = (y - n * 0.693359375f) - n * -2.12194440054690583e-4f;
  float p = float(1.0 / 5040) * r + float(1.0 / 720);
  p = p * r + float(1.0 / 120);
  p = p * r + float(1.0 / 24);
  p = p * r + float(1.0 / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` hold n as an integer.
  uint32_t exponent = bits_as<uint32_t>(shifted) - bits_as<uint32_t>(kRound);
  float e = bits_as<float>((bits_as<uint32_t>(p) + (exponent << 23)) & inside);
  double scaled = double(e) * double(int64_t{1} << kWeightBits);
  constexpr double kRound52 = 4503599627370496.0;  // adding 2^52 rounds to an integer, half to even
  return bits_as<int64_t>(scaled + kRound52) - bits_as<int64_t>(kRound52);
}

inline double log(double x) {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDull;
  uint64_t offset = bits_as<uint64_t>(x) - kSqrtHalf;
  double e = double(int64_t(offset) >> 52);
  double m = bits_as<double>((offset & ((uint64_t{1} << 52) - 1)) + kSqrtHalf);
  double f = m - 1.0;
  double s = f / (2.0 + f);
  double z = s * s;
  double q = 1.0 / 25;
  for (int n = 23; n > 2; n -= 2) q = q * z + 1.0 / n;
  double series = (s + s) + (s + s) * (z * q);
  return e * 0x1.62e42feep-1 + (series + e * 0x1.a39ef35793c76p-33);
}

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline uint64_t noise_key(uint64_t seed, uint64_t choice, uint64_t position) {
  uint64_t key = mix(seed + kGolden);
  key = mix(key + choice * kGolden + 1);
  return mix(key + position * kGolden + 2);
}

inline uint64_t noise_bits(uint64_t key, int64_t id) { return mix(key + (uint64_t(id) + 1) * kGolden); }

// -log(-log(u)), u = (top 52 bits + 1/2) / 2^52.
inline double gumbel(uint64_t bits) {
  double u = (double(bits >> 12) + 0.5) * 0x1p-52;
  return -log(-log(u));
}

// Never below gumbel(bits): -log(u) >= 1 - u >= 2^-(z + 1), where z counts the leading ones of the bits.
inline double gumbel_bound(uint64_t bits) {
  int z = __builtin_clzll(~bits | 0x800);
  return (z + 1) * 0.69314719 + 1e-6;
}

// Larger key = earlier in the order (logit descending, id ascending). Keys of one row are distinct.
inline uint64_t order_key(float logit, int64_t id) {
  uint32_t b = bits_as<uint32_t>(logit + 0.0f);  // -0 orders as +0
  b = (b >> 31) ? ~b : (b | 0x80000000u);
  return (uint64_t(b) << 32) | (0xFFFFFFFFu - uint32_t(id));
}

inline int32_t key_id(uint64_t key) { return int32_t(0xFFFFFFFFu - uint32_t(key)); }

inline float key_logit(uint64_t key) {
  uint32_t b = uint32_t(key >> 32);
  return bits_as<float>((b >> 31) ? (b & 0x7FFFFFFFu) : ~b);
}

}  // namespace ridgeline::exact
