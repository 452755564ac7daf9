// The loops of the fast kernels for F32, F16 and BF16 weights, written once over a vector type V. Each (token, row) is one chain
// of fused multiply-adds along k; blocks of k continue it, so that a block of weights and inputs stays in L1 and L2.
#pragma once
#include <cstring>

#include "ops/linear_internal.h"
#include "ops/linear_layout.h"

namespace ridgeline {
namespace {

constexpr int64_t kColumnBlock = 512;  // columns per pass: 64 KB of float32 weights for two pairs of row tiles
constexpr int64_t kFloatTokens = 64;   // tokens whose accumulators wait in L1 between passes

enum class Weight { kF32, kF16, kBF16 };

constexpr int64_t weight_bytes(Weight w) { return w == Weight::kF32 ? 4 : 2; }

template <Weight kWeight, typename V>
__attribute__((always_inline)) inline typename V::F load_weights(const uint8_t* p) {
  if constexpr (kWeight == Weight::kF32) return V::f32(p);
  if constexpr (kWeight == Weight::kF16) return V::f16(p);
  if constexpr (kWeight == Weight::kBF16) return V::bf16(p);
}

// kPairs pairs of row tiles (or one tile), kTokens tokens, `columns` columns; continues out[token][row]. p: the first pair at the
// first column, V::kVectors vectors of rows; `step` bytes to the next column, `next` to the next pair.
template <Weight kWeight, typename V, int kPairs, int kTokens>
__attribute__((noinline)) void float_block(const uint8_t* p, int64_t step, int64_t next, int64_t columns, const float* x, int64_t stride,
                                           float* out) {
  using F = typename V::F;
  constexpr int kVectors = kPairs * V::kVectors;
  F acc[kTokens][kVectors];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[t][v] = V::load(out + (t * kVectors + v) * V::kLanes);
  for (int64_t k = 0; k < columns; ++k, p += step, ++x) {
    F w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      w[v] = load_weights<kWeight, V>(p + v / V::kVectors * next + v % V::kVectors * V::kLanes * weight_bytes(kWeight));
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const F value = V::set(x[t * stride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[t][v] = V::fma(w[v], value, acc[t][v]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::store(out + (t * kVectors + v) * V::kLanes, acc[t][v]);
}

// The same for any number of tokens up to V::kTokens.
template <Weight kWeight, typename V, int kPairs, int kTokens = V::kTokens>
void float_tokens(int64_t tokens, const uint8_t* p, int64_t step, int64_t next, int64_t columns, const float* x, int64_t stride,
                  float* out) {
  if (tokens >= kTokens) return float_block<kWeight, V, kPairs, kTokens>(p, step, next, columns, x, stride, out);
  if constexpr (kTokens > 1) float_tokens<kWeight, V, kPairs, kTokens - 1>(tokens, p, step, next, columns, x, stride, out);
}

// kPairs pairs of row tiles (or one tile) at `p`, converted to float32 in the calling thread's scratch, a pair after the other.
template <Weight kWeight, typename V, int kPairs>
const uint8_t* widen(const uint8_t* p, int64_t step, int64_t next, int64_t columns) {
  constexpr int kRows = V::kVectors * V::kLanes;
  float* out = static_cast<float*>(thread_scratch(kPairs * kRows * columns * weight_bytes(Weight::kF32)));
  float* to = out;
  for (int pair = 0; pair < kPairs; ++pair)
    for (int64_t k = 0; k < columns; ++k)
      for (int v = 0; v < V::kVectors; ++v, to += V::kLanes)
        V::store(to, load_weights<kWeight, V>(p + pair * next + k * step + v * V::kLanes * weight_bytes(kWeight)));
  return reinterpret_cast<const uint8_t*>(out);
}

// Rows [row, row + live) of the matrix, at most kPairs * V::kVectors * V::kLanes, for all tokens.
template <Weight kWeight, typename V, int kPairs>
void float_rows(const PackedMatrix& w, const TileSpan& span, const Activations& a, float* y, int64_t y_stride, int64_t row, int64_t live) {
  constexpr int kRows = V::kVectors * V::kLanes, kOut = kPairs * kRows;
  constexpr int64_t kWide = kRows * weight_bytes(Weight::kF32);
  const int64_t next = span.step * w.columns;
  alignas(64) float out[kFloatTokens * kOut];
  for (int64_t t0 = 0; t0 < a.tokens; t0 += kFloatTokens) {
    const int64_t tokens = a.tokens - t0 < kFloatTokens ? a.tokens - t0 : kFloatTokens;
    std::memset(out, 0, static_cast<size_t>(tokens * kOut) * sizeof(float));
    const bool widened = kWeight != Weight::kF32 && tokens > V::kWidenAbove;
    const int64_t block = tokens > V::kTokens ? kColumnBlock : w.columns;
    for (int64_t k = 0; k < w.columns; k += block) {
      const int64_t columns = w.columns - k < block ? w.columns - k : block;
      const uint8_t* p = w.data + span.group + k * span.step;
      const float* x = a.values + t0 * a.stride + k;
      if (widened) {
        const uint8_t* wide = widen<kWeight, V, kPairs>(p, span.step, next, columns);
        for (int64_t t = 0; t < tokens; t += V::kTokens)
          float_tokens<Weight::kF32, V, kPairs>(tokens - t, wide, kWide, kWide * columns, columns, x + t * a.stride, a.stride,
                                                out + t * kOut);
      } else {
        for (int64_t t = 0; t < tokens; t += V::kTokens)
          float_tokens<kWeight, V, kPairs>(tokens - t, p, span.step, next, columns, x + t * a.stride, a.stride, out + t * kOut);
      }
    }
    for (int64_t t = 0; t < tokens; ++t)
      std::memcpy(y + (t0 + t) * y_stride + row, out + t * kOut, static_cast<size_t>(live) * sizeof(float));
  }
}

// How many whole pairs begin at `row`, at most `most`; the last may have fewer rows wanted or live than it has.
inline int64_t whole_pairs(const PackedMatrix& w, int64_t row, int64_t last, int64_t most) {
  int64_t n = 0;
  while (n < most && row + n * 2 * kRowTile + kRowTile < last) ++n;
  return row % (2 * kRowTile) == 0 && row + kRowTile < w.rows ? n : 0;
}

// Row tiles in pairs, as many at a time as keep the multipliers busy; a single tile or half of a pair as Single.
template <Weight kWeight, typename Single, typename V>
void float_matmul(const PackedMatrix& w, const Activations& a, float* y, int64_t y_stride, int64_t first, int64_t last) {
  for (int64_t row = first; row < last;) {
    const TileSpan span = float_span(row / kRowTile, w.rows, w.columns, weight_bytes(kWeight));
    const int64_t pairs = whole_pairs(w, row, last, a.tokens * V::kVectors <= 2 ? 4 : 2), left = last - row;
    const int64_t wanted = pairs == 0 ? kRowTile : (pairs == 3 ? 2 : pairs) * 2 * kRowTile, live = left < wanted ? left : wanted;
    switch (pairs) {
      case 0:
        float_rows<kWeight, Single, 1>(w, span, a, y, y_stride, row, live);
        break;
      case 1:
        float_rows<kWeight, V, 1>(w, span, a, y, y_stride, row, live);
        break;
      case 4:
        float_rows<kWeight, V, 4>(w, span, a, y, y_stride, row, live);
        break;
      default:
        float_rows<kWeight, V, 2>(w, span, a, y, y_stride, row, live);
        break;
    }
    row += live;
  }
}

}  // namespace
}  // namespace ridgeline
