// Test side: random file blocks of every encoding, and a decoder written from the format descriptions alone (no packed layout).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "ops/linear.h"

namespace linear_test {

using ridgeline::Encoding;

struct Format {
  Encoding encoding;
  const char* name;
  int block, bytes;
  std::vector<int> halves;  // byte offsets of float16 fields in a block
};

inline const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {Encoding::kF32, "F32", 1, 4, {}},          {Encoding::kF16, "F16", 1, 2, {}},           {Encoding::kBF16, "BF16", 1, 2, {}},
      {Encoding::kQ4_0, "Q4_0", 32, 18, {0}},     {Encoding::kQ4_1, "Q4_1", 32, 20, {0, 2}},   {Encoding::kQ5_0, "Q5_0", 32, 22, {0}},
      {Encoding::kQ5_1, "Q5_1", 32, 24, {0, 2}},  {Encoding::kQ8_0, "Q8_0", 32, 34, {0}},      {Encoding::kQ2_K, "Q2_K", 256, 84, {80, 82}},
      {Encoding::kQ3_K, "Q3_K", 256, 110, {108}}, {Encoding::kQ4_K, "Q4_K", 256, 144, {0, 2}}, {Encoding::kQ5_K, "Q5_K", 256, 176, {0, 2}},
      {Encoding::kQ6_K, "Q6_K", 256, 210, {208}}, {Encoding::kIQ4_NL, "IQ4_NL", 32, 18, {0}},  {Encoding::kIQ4_XS, "IQ4_XS", 256, 136, {0}},
      {Encoding::kMXFP4, "MXFP4", 32, 17, {}},
  };
  return all;
}

inline float half_value(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  const int e = (h >> 10) & 31, m = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (e == 31) return m ? NAN : sign * INFINITY;
  return sign * (e == 0 ? std::ldexp(static_cast<float>(m), -24) : std::ldexp(static_cast<float>(m + 1024), e - 25));
}

// `rows` rows of `columns` random values in file layout; every bit pattern of codes and scales, floats finite.
inline std::vector<uint8_t> random_rows(const Format& f, int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> out(static_cast<size_t>(rows * columns / f.block * f.bytes));
  for (auto& byte : out) byte = static_cast<uint8_t>(random());
  for (size_t at = 0; at < out.size(); at += f.bytes) {
    for (int half : f.halves) {
      // Mostly ordinary numbers; some subnormals and zeros.
      const uint32_t draw = random() % 16;
      uint16_t h = static_cast<uint16_t>((random() & 0x83ff) | ((6 + random() % 8) << 10));
      if (draw == 0) h &= 0x83ff;
      if (draw == 1) h = 0;
      std::memcpy(&out[at + half], &h, 2);
    }
    if (f.encoding == Encoding::kMXFP4) out[at] = static_cast<uint8_t>(110 + random() % 20);
    if (f.encoding == Encoding::kF32) {
      const float v = std::ldexp(static_cast<float>(static_cast<int32_t>(random())), -32);
      std::memcpy(&out[at], &v, 4);
    }
    if (f.encoding == Encoding::kF16 && (out[at + 1] & 0x7c) == 0x7c) out[at + 1] &= 0x83;
    if (f.encoding == Encoding::kBF16) out[at + 1] = static_cast<uint8_t>((out[at + 1] & 0x80) | 0x3e);
  }
  return out;
}

inline void decode_small(const Format& f, const uint8_t* b, float* out) {
  static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  static const float fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const bool mxfp4 = f.encoding == Encoding::kMXFP4;
  const float d = mxfp4 ? std::ldexp(1.0f, b[0] - 128) : half_value(b);
  const float m = half_value(b + 2);
  for (int j = 0; j < 32; ++j) {
    auto nibble = [&](int at) { return j < 16 ? b[at + j] & 15 : b[at + j - 16] >> 4; };
    auto high = [&](int at) { return ((b[at + j / 8] >> (j % 8)) & 1) << 4; };
    switch (f.encoding) {
      case Encoding::kQ4_0:
        out[j] = d * static_cast<float>(nibble(2) - 8);
        break;
      case Encoding::kQ4_1:
        out[j] = d * static_cast<float>(nibble(4)) + m;
        break;
      case Encoding::kQ5_0:
        out[j] = d * static_cast<float>((nibble(6) | high(2)) - 16);
        break;
      case Encoding::kQ5_1:
        out[j] = d * static_cast<float>(nibble(8) | high(4)) + m;
        break;
      case Encoding::kQ8_0:
        out[j] = d * static_cast<float>(static_cast<int8_t>(b[2 + j]));
        break;
      case Encoding::kIQ4_NL:
        out[j] = d * static_cast<float>(iq4[nibble(2)]);
        break;
      default:
        out[j] = d * fp4[nibble(1)];
        break;
    }
  }
}

inline void scale_min_of(const uint8_t* s, int g, int* scale, int* min) {
  *scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
  *min = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
}

inline void decode_super(const Format& f, const uint8_t* b, float* out) {
  static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  for (int k = 0; k < 256; ++k) {
    const int g = k / 32, l = k % 32, n = k / 128, j = g % 4;
    if (f.encoding == Encoding::kQ4_K || f.encoding == Encoding::kQ5_K) {
      int scale, min;
      scale_min_of(b + 4, g, &scale, &min);
      const bool five = f.encoding == Encoding::kQ5_K;
      int q = (b[(five ? 48 : 16) + 32 * (g / 2) + l] >> (g % 2 ? 4 : 0)) & 15;
      if (five) q += (b[16 + l] >> g & 1) * 16;
      out[k] = half_value(b) * static_cast<float>(scale) * static_cast<float>(q) - half_value(b + 2) * static_cast<float>(min);
    } else if (f.encoding == Encoding::kQ6_K) {
      const int low = b[64 * n + 32 * (j % 2) + l] >> (j < 2 ? 0 : 4) & 15, high = b[128 + 32 * n + l] >> (2 * j) & 3;
      const float scale = half_value(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + k / 16]));
      out[k] = scale * static_cast<float>((low | high << 4) - 32);
    } else if (f.encoding == Encoding::kQ2_K) {
      const int q = b[16 + 32 * n + l] >> (2 * j) & 3, sm = b[k / 16];
      out[k] = half_value(b + 80) * static_cast<float>(sm & 15) * static_cast<float>(q) - half_value(b + 82) * static_cast<float>(sm >> 4);
    } else if (f.encoding == Encoding::kQ3_K) {
      const int i = k / 16, low = i < 8 ? b[96 + i] & 15 : b[96 + i - 8] >> 4, high = b[104 + i % 4] >> (2 * (i / 4)) & 3;
      const int q = (b[32 + 32 * n + l] >> (2 * j) & 3) - (b[l] >> g & 1 ? 0 : 4);
      out[k] = half_value(b + 108) * static_cast<float>((low | high << 4) - 32) * static_cast<float>(q);
    } else {  // IQ4_XS
      uint16_t tops;
      std::memcpy(&tops, b + 2, 2);
      const int scale = (b[4 + g / 2] >> (g % 2 ? 4 : 0) & 15) | (tops >> (2 * g) & 3) << 4;
      const int q = l < 16 ? b[8 + 16 * g + l] & 15 : b[8 + 16 * g + l - 16] >> 4;
      out[k] = half_value(b) * static_cast<float>(scale - 32) * static_cast<float>(iq4[q]);
    }
  }
}

inline std::vector<float> decode_rows(const Format& f, const std::vector<uint8_t>& file, int64_t rows, int64_t columns) {
  std::vector<float> out(static_cast<size_t>(rows * columns));
  const uint8_t* b = file.data();
  for (size_t at = 0; at < out.size(); at += f.block, b += f.bytes) {
    if (f.block == 32) decode_small(f, b, &out[at]);
    if (f.block == 256) decode_super(f, b, &out[at]);
    if (f.encoding == Encoding::kF32) std::memcpy(&out[at], b, 4);
    if (f.encoding == Encoding::kF16) out[at] = half_value(b);
    if (f.encoding == Encoding::kBF16) {
      const uint32_t bits = static_cast<uint32_t>(b[0] | b[1] << 8) << 16;
      std::memcpy(&out[at], &bits, 4);
    }
  }
  return out;
}

}  // namespace linear_test
