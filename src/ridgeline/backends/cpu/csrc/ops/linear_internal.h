// What the linear kernels share among themselves: the tiled layout of activations, scratch memory, the kernel tables per ISA.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/linear.h"

namespace ridgeline {

// Of the activations `quantize` stores tile after tile of kTokenTile tokens, each as [group][token][32] codes and [group][token]
// scales and sums, so that a kernel walks one group of all tokens of a tile sequentially. With one token it is the plain row.

// One value of `sums`: the sums of codes 0..15 (low 16 bits) and 16..31 (high 16 bits), both as int16.
static inline int32_t join_sums(int32_t low, int32_t high) {
  return static_cast<int32_t>((static_cast<uint32_t>(low) & 0xffffu) | (static_cast<uint32_t>(high) << 16));
}
static inline int32_t low_sum(int32_t sums) { return static_cast<int16_t>(static_cast<uint32_t>(sums) & 0xffffu); }
static inline int32_t high_sum(int32_t sums) { return static_cast<int16_t>(static_cast<uint32_t>(sums) >> 16); }

static inline int64_t group_count(int64_t columns) { return (columns + kGroup - 1) / kGroup; }

struct TokenTile {
  int64_t first;        // first token
  int64_t tokens;       // 1..kTokenTile
  const int8_t* codes;  // [groups][tokens][32]
  const float* scales;  // [groups][tokens]
  const int32_t* sums;  // [groups][tokens]
};

static inline TokenTile token_tile(const Activations& a, int64_t first) {
  const int64_t groups = group_count(a.columns), left = a.tokens - first;
  return {first, left < kTokenTile ? left : kTokenTile, a.codes + first * groups * kGroup, a.scales + first * groups,
          a.sums + first * groups};
}

static inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact in float32
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

static inline float bf16_to_f32(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

static inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// A power of two from its 8-bit exponent, halved (MXFP4's table holds doubled values): 2^(e - 128), exact, subnormals included.
static inline float e8m0_half(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// At least `bytes` of 64-byte aligned memory that belongs to the calling thread until its next call; grows, never shrinks.
void* thread_scratch(int64_t bytes);

void quantize_portable(const Activations& a, int64_t first, int64_t last);
void quantize_avx2(const Activations& a, int64_t first, int64_t last);
void decode_row_portable(const PackedMatrix& w, int64_t row, float* out);

// Null where the ISA has no kernel of its own for the encoding.
const LinearKernels* linear_kernels_portable(Encoding encoding);
const LinearKernels* linear_kernels_avx2(Encoding encoding);
const LinearKernels* linear_kernels_avx512(Encoding encoding);
const LinearKernels* float_kernels_portable(Encoding encoding);
const LinearKernels* float_kernels_avx2(Encoding encoding);
const LinearKernels* float_kernels_avx512(Encoding encoding);

}  // namespace ridgeline
