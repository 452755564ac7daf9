// Eight float lanes in plain C++: what every other instruction set does, spelt out. Included inside an anonymous namespace's
// file only (each kernel file holds its own copy, so that code built for one instruction set never runs on another).
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/half.h"

namespace ridgeline {
namespace {

struct Vec {
  static constexpr int kLanes = 8;
  static constexpr int kScoreVectors = 2;  // vectors per row of a register block: the block's sums must fit the registers
  static constexpr bool kPairs = false;
  struct Reg {
    float v[8];
  };
  struct Mask {
    bool v[8];
  };

  template <typename F>
  static Reg make(F f) {
    Reg r;
    for (int i = 0; i < 8; ++i) r.v[i] = f(i);
    return r;
  }
  static Reg zero() { return set1(0.0f); }
  static Reg set1(float x) {
    return make([&](int) { return x; });
  }
  static Reg load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  static Reg load_n(const float* p, int64_t n) {
    return make([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void store(float* p, Reg a) { std::memcpy(p, a.v, sizeof a.v); }
  static void store_n(float* p, Reg a, int64_t n) {
    for (int i = 0; i < 8 && i < n; ++i) p[i] = a.v[i];
  }
  static Reg load_bf16(const uint16_t* p) {
    return make([&](int i) { return bf16_to_float(p[i]); });
  }
  static Reg load_f16(const uint16_t* p) {
    return make([&](int i) { return f16_to_float(p[i]); });
  }
  static Reg load_i8(const int8_t* p) {
    return make([&](int i) { return static_cast<float>(p[i]); });
  }
  // Half of each byte: the low one for shift 0, the high one for shift 4.
  static Reg load_u4(const uint8_t* p, int shift) {
    return make([&](int i) { return static_cast<float>((p[i] >> shift) & 15); });
  }
  static void store_bf16(uint16_t* p, Reg a) {
    for (int i = 0; i < 8; ++i) p[i] = float_to_bf16(a.v[i]);
  }
  static void store_f16(uint16_t* p, Reg a) {
    for (int i = 0; i < 8; ++i) p[i] = float_to_f16(a.v[i]);
  }
  static Reg add(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Reg sub(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Reg mul(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Reg div(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] / b.v[i]; });
  }
  static Reg fma(Reg a, Reg b, Reg c) {
    return make([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
  }
  static Reg fnma(Reg a, Reg b, Reg c) {
    return make([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
  }
  // The second operand where either is NaN.
  static Reg min(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Reg max(Reg a, Reg b) {
    return make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Reg abs(Reg a) {
    return make([&](int i) { return __builtin_fabsf(a.v[i]); });
  }
  static Reg copy_sign(Reg a, Reg sign) {
    return make([&](int i) { return __builtin_copysignf(a.v[i], sign.v[i]); });
  }
  static Reg round(Reg a) {
    return make([&](int i) { return __builtin_nearbyintf(a.v[i]); });
  }
  // 2^n for whole n in -126..127, infinity for 128; anything for NaN.
  static Reg pow2(Reg n) {
    return make([&](int i) {
      const bool whole = n.v[i] >= -126.0f && n.v[i] <= 128.0f;
      const uint32_t bits = static_cast<uint32_t>((whole ? static_cast<int32_t>(n.v[i]) : 0) + 127) << 23;
      float f;
      std::memcpy(&f, &bits, sizeof f);
      return f;
    });
  }
  static Mask less(Reg a, Reg b) {
    Mask m;
    for (int i = 0; i < 8; ++i) m.v[i] = a.v[i] < b.v[i];
    return m;
  }
  // Lanes first <= i < last.
  static Mask lanes(int64_t first, int64_t last) {
    Mask m;
    for (int i = 0; i < 8; ++i) m.v[i] = first <= i && i < last;
    return m;
  }
  static Reg select(Mask m, Reg yes, Reg no) {
    return make([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
  }
  static float sum(Reg a) { return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7])); }
  static float largest(Reg a) {
    float m = a.v[0];
    for (int i = 1; i < 8; ++i) m = a.v[i] > m ? a.v[i] : m;
    return m;
  }
};

}  // namespace
}  // namespace ridgeline
