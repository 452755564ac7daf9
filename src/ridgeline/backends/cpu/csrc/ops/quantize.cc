// Quantizes activation rows to int8 groups of 32, one float scale each, into the tiled layout of linear_internal.h.
#include <cmath>

#include "ops/linear_internal.h"

namespace ridgeline {
namespace {

// The largest magnitude, found on bit patterns: NaN wins over everything and so reaches the scale and every output.
float largest(const float* x, int64_t n) {
  uint32_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7fffffffu;
    best = bits > best ? bits : best;
  }
  float out;
  std::memcpy(&out, &best, 4);
  return out;
}

int8_t code_of(float x, float scale) {
  float v = x / scale;
  v = v < 127.0f ? v : 127.0f;  // also NaN, as minps does
  v = v > -127.0f ? v : -127.0f;
  return static_cast<int8_t>(std::nearbyintf(v));
}

}  // namespace

void quantize_portable(const Activations& a, int64_t first, int64_t last) {
  const int64_t groups = group_count(a.columns);
  for (int64_t t = first; t < last; ++t) {
    const TokenTile tile = token_tile(a, t / kTokenTile * kTokenTile);
    for (int64_t g = 0; g < groups; ++g) {
      const float* x = a.values + t * a.stride + g * kGroup;
      const int64_t n = a.columns - g * kGroup < kGroup ? a.columns - g * kGroup : kGroup;
      const int64_t at = g * tile.tokens + (t - tile.first);
      int8_t* codes = const_cast<int8_t*>(tile.codes) + at * kGroup;
      const float scale = largest(x, n) / 127.0f;
      int32_t half[2] = {0, 0};
      for (int64_t k = 0; k < kGroup; ++k) {
        codes[k] = k < n && scale != 0.0f ? code_of(x[k], scale) : int8_t{0};
        half[k / 16] += codes[k];
      }
      const_cast<float*>(tile.scales)[at] = scale;
      const_cast<int32_t*>(tile.sums)[at] = join_sums(half[0], half[1]);
    }
  }
}

}  // namespace ridgeline
