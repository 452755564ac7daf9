// The loops of the fast linear kernels, written once over a vector type V and a format F<V>. Knows no layout.
//
// Order: blocks of rows that fit in L2, tiles of tokens, row tiles, groups along k, tokens. A group is unpacked once and used by
// all tokens of the tile; each (token, row) keeps one accumulator along k, in a register (few tokens) or in L1.
#pragma once
#include "ops/linear_formats_simd.h"
#include "ops/linear_internal.h"

namespace ridgeline {
namespace {

constexpr int64_t kRowBlockBytes = 256 * 1024;

// What a group adds besides codes x codes: -offset * sum (integer, the start of the dot product) or scale * sum (with minimums).
struct Extra {
  const int32_t* offsets[2];
  const float* sums[2];
};

template <typename F, bool kSignedCodes>
constexpr bool uses_offset() {
  return F::kOffset != 0 && !(F::kSigned && kSignedCodes);
}

template <typename F, bool kSignedCodes>
Extra prepare_extra(const TokenTile& a, int64_t groups) {
  Extra extra = {};
  constexpr bool kOffsets = uses_offset<F, kSignedCodes>();
  if (!kOffsets && !F::kMin) return extra;
  const int64_t n = groups * a.tokens;
  void* scratch = thread_scratch(n * 8);
  for (int h = 0; h < F::kHalves; ++h) {
    int32_t* offsets = static_cast<int32_t*>(scratch) + h * n;
    float* sums = static_cast<float*>(scratch) + h * n;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t both = a.sums[i], low = low_sum(both), high = high_sum(both);
      const int32_t sum = F::kHalves == 1 ? low + high : (h == 0 ? low : high);
      if (kOffsets) offsets[i] = -F::kOffset * sum;
      if (F::kMin) sums[i] = a.scales[i] * static_cast<float>(sum);
    }
    extra.offsets[h] = offsets;
    extra.sums[h] = sums;
  }
  return extra;
}

// One token, one group: acc plus the group's share.
template <typename F, typename V>
__attribute__((always_inline)) inline typename V::F add_group(const typename V::I* codes, const typename V::F* scale, const typename V::F* min,
                                                              const TokenTile& a, const Extra& extra, int64_t at, typename V::F acc) {
  constexpr int kVectors = 8 / F::kHalves;
  const int8_t* x = a.codes + at * kGroup;
  const typename V::F ascale = V::set(a.scales[at]);
  for (int h = 0; h < F::kHalves; ++h) {
    typename V::I dot;
    if constexpr (uses_offset<F, V::kSigned>()) {
      dot = V::template dot<F::kTerms, kVectors, F::kSigned>(codes + h * kVectors, x + 16 * h, V::set32(extra.offsets[h][at]));
    } else {
      dot = V::template dot<F::kTerms, kVectors, F::kSigned>(codes + h * kVectors, x + 16 * h);
    }
    acc = V::fma(V::floats(dot), V::times(scale[h], ascale), acc);
  }
  if constexpr (F::kMin)
    for (int h = 0; h < F::kHalves; ++h) acc = V::fma(min[h], V::set(extra.sums[h][at]), acc);
  return acc;
}

// V::kLanes rows times the tokens of a tile, into out[token][lane]. kTokens > 0: that many tokens, accumulators in registers.
template <typename F, typename V, int kTokens>
__attribute__((noinline)) void multiply(const uint8_t* p, int64_t next, int64_t groups, const TokenTile& a, const Extra& extra, float* out) {
  typename V::F acc[kTokens > 0 ? kTokens : 1];
  if constexpr (kTokens > 0) {
    for (int t = 0; t < kTokens; ++t) acc[t] = V::zero();
  } else {
    for (int64_t t = 0; t < a.tokens; ++t) V::store_floats(out + t * V::kLanes, V::zero());
  }
  int64_t at = 0;
  for (int64_t super = 0; super < groups / F::kGroups; ++super, p += F::kBytes) {
    const typename F::Head head = F::head(p, next);
    for (int g = 0; g < F::kGroups; ++g) {
      typename V::I codes[8];
      typename V::F scale[2], min[2];
      F::unpack(p, next, head, g, codes, scale, min);
      if constexpr (kTokens > 0) {
        for (int t = 0; t < kTokens; ++t, ++at) acc[t] = add_group<F, V>(codes, scale, min, a, extra, at, acc[t]);
      } else {
        for (float* o = out; o < out + a.tokens * V::kLanes; o += V::kLanes, ++at)
          V::store_floats(o, add_group<F, V>(codes, scale, min, a, extra, at, V::load_floats(o)));
      }
    }
  }
  if constexpr (kTokens > 0)
    for (int t = 0; t < kTokens; ++t) V::store_floats(out + t * V::kLanes, acc[t]);
}

template <typename F, typename V>
void multiply_tile(const uint8_t* p, int64_t next, int64_t groups, const TokenTile& a, const Extra& extra, float* out) {
  switch (a.tokens) {
    case 1: return multiply<F, V, 1>(p, next, groups, a, extra, out);
    case 2: return multiply<F, V, 2>(p, next, groups, a, extra, out);
    case 3: return multiply<F, V, 3>(p, next, groups, a, extra, out);
    case 4: return multiply<F, V, 4>(p, next, groups, a, extra, out);
    default: return multiply<F, V, 0>(p, next, groups, a, extra, out);
  }
}

struct Output {
  float* y;
  int64_t stride;
};

inline void write_rows(const float* out, int lanes, int64_t tokens, int64_t live, float* y, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) std::memcpy(y + t * stride, out + t * lanes, static_cast<size_t>(live) * sizeof(float));
}

// Rows [first, last) times one token tile: pairs of row tiles in Wide vectors, a left-over tile in Narrow ones.
template <template <typename> class F, typename Narrow, typename Wide>
void multiply_rows(const PackedMatrix& w, const TokenTile& a, const Output& y, int64_t first, int64_t last) {
  using N = F<Narrow>;
  const int64_t groups = w.columns / kGroup, tile_bytes = groups / N::kGroups * N::kBytes;
  const Extra extra = prepare_extra<N, Narrow::kSigned>(a, groups);
  alignas(64) float out[kTokenTile * Wide::kLanes];
  for (int64_t row = first; row < last;) {
    const uint8_t* p = w.data + row / kRowTile * tile_bytes;
    const bool wide = Wide::kLanes > kRowTile && last - row > kRowTile;
    const int64_t lanes = wide ? Wide::kLanes : kRowTile, live = last - row < lanes ? last - row : lanes;
    if (wide) {
      multiply_tile<F<Wide>, Wide>(p, tile_bytes, groups, a, extra, out);
    } else {
      multiply_tile<N, Narrow>(p, 0, groups, a, extra, out);
    }
    write_rows(out, static_cast<int>(lanes), a.tokens, live, y.y + a.first * y.stride + row, y.stride);
    row += live;
  }
}

template <template <typename> class F, typename Narrow, typename Wide>
void matmul(const PackedMatrix& w, const Activations& a, float* y, int64_t y_stride, int64_t first, int64_t last) {
  using N = F<Narrow>;
  const int64_t row_bytes = w.columns / kGroup / N::kGroups * N::kBytes / kRowTile + 1;
  const int64_t wanted = kRowBlockBytes / row_bytes / 16 * 16, block = wanted < 64 ? 64 : wanted;
  for (int64_t row = first; row < last; row += block)
    for (int64_t t = 0; t < a.tokens; t += kTokenTile)
      multiply_rows<F, Narrow, Wide>(w, token_tile(a, t), {y, y_stride}, row, row + block < last ? row + block : last);
}

}  // namespace
}  // namespace ridgeline
