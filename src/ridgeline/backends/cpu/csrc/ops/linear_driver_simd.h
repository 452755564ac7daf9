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
// From this many tokens on, too few groups fit the window of instructions in flight to hide memory; with fewer, prefetching costs.
constexpr int64_t kPrefetchTokens = 4, kPrefetchBytes = 3072;
// Up to as many tokens keep their sums in registers: AVX-512 has twice as many of them.
template <typename V>
constexpr int64_t kRegisterTokens = V::kLanes == 2 * kRowTile ? 8 : 4;

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

// Where a group's inputs lie, in order of (group, token). Kept in locals: stores to the output cannot change them.
struct Cursor {
  const int8_t* codes;
  const float* scales;
  const int32_t* offsets[2];
  const float* sums[2];
};

// One token, one group: acc plus the group's share. `load` gives acc: read late, it holds no register during the dot product.
template <typename F, typename V, typename Load>
__attribute__((always_inline)) inline typename V::F add_group(const typename V::I* codes, const typename V::F* scale,
                                                              const typename V::F* min, const Cursor& a, int64_t at, Load load) {
  constexpr int kVectors = 8 / F::kHalves;
  const int8_t* x = a.codes + at * kGroup;
  typename V::F acc = V::zero();
  for (int h = 0; h < F::kHalves; ++h) {
    typename V::I dot;
    if constexpr (uses_offset<F, V::kSigned>()) {
      dot = V::template dot<F::kTerms, kVectors, F::kSigned>(codes + h * kVectors, x + 16 * h, V::set32(a.offsets[h][at]));
    } else {
      dot = V::template dot<F::kTerms, kVectors, F::kSigned>(codes + h * kVectors, x + 16 * h);
    }
    acc = V::fma(V::floats(dot), V::times(scale[h], V::set(a.scales[at])), h == 0 ? load() : acc);
  }
  if constexpr (F::kMin)
    for (int h = 0; h < F::kHalves; ++h) acc = V::fma(min[h], V::set(a.sums[h][at]), acc);
  return acc;
}

// The same for two vectors of rows, which share what is read of the token; acc[tile] goes on from `from[tile]`.
template <typename F, typename V>
__attribute__((always_inline)) inline void add_group_two(const typename V::I (*codes)[8], const typename V::F (*scale)[2], const Cursor& a,
                                                         int64_t at, const float* const* from, typename V::F* acc) {
  static_assert(!F::kMin);
  constexpr int kVectors = 8 / F::kHalves;
  const int8_t* x = a.codes + at * kGroup;
  for (int h = 0; h < F::kHalves; ++h) {
    const typename V::I start = uses_offset<F, V::kSigned>() ? V::set32(a.offsets[h][at]) : V::set32(0);
    typename V::I dot[2] = {start, start};
    V::template dot_two<kVectors>(codes[0] + h * kVectors, codes[1] + h * kVectors, x + 16 * h, dot);
    const typename V::F s = V::set(a.scales[at]);
    for (int i = 0; i < 2; ++i) acc[i] = V::fma(V::floats(dot[i]), V::times(scale[i][h], s), h == 0 ? V::load_floats(from[i]) : acc[i]);
  }
}

// Whether two wide vectors share what they read of many tokens. With minimums the multipliers are busy enough without.
template <typename F, typename V>
constexpr bool shares_inputs() {
  return V::kLanes == 2 * kRowTile && !F::kMin;
}

// How far a second vector of rows lies behind the first: its head and its group. (A wide vector holds both row tiles of a pair.)
template <typename F, typename V>
void next_vector(const TileSpan& span, int64_t groups, int64_t* head, int64_t* group) {
  constexpr bool kWide = V::kLanes == 2 * kRowTile;
  *head = kWide ? span.step * (groups / F::kGroups) : F::kHeadBytes;
  *group = kWide ? *head : F::kGroupBytes;
}

// kTiles * V::kLanes rows times the tokens of a tile, into out[tile][token][lane]. kTokens > 0: that many tokens, accumulators in
// registers.
template <typename F, typename V, int kTiles, int kTokens>
__attribute__((noinline)) void multiply(const uint8_t* data, const TileSpan& span, int64_t groups, const TokenTile& a, const Extra& extra,
                                        float* out) {
  const Cursor in = {a.codes, a.scales, {extra.offsets[0], extra.offsets[1]}, {extra.sums[0], extra.sums[1]}};
  const int64_t tokens = kTokens > 0 ? kTokens : a.tokens, step = span.step, group_step = span.group_step;
  int64_t next_head, next_group;
  next_vector<F, V>(span, groups, &next_head, &next_group);
  typename V::F acc[kTiles][kTokens > 0 ? kTokens : 1];
  if constexpr (kTokens > 0) {
    for (int i = 0; i < kTiles * kTokens; ++i) acc[i / kTokens][i % kTokens] = V::zero();
  } else {
    for (int64_t i = 0; i < kTiles * tokens; ++i) V::store_floats(out + i * V::kLanes, V::zero());
  }
  const uint8_t *head_bytes = data + span.head, *group_bytes = data + span.group;
  for (int64_t super = 0; super < groups; super += F::kGroups, head_bytes += step, group_bytes += step) {
    typename F::Head head[kTiles];
    for (int tile = 0; tile < kTiles; ++tile) head[tile] = F::head(head_bytes + tile * next_head);
    for (int g = 0; g < F::kGroups; ++g) {
      const int64_t at = (super + g) * tokens;
      const uint8_t* group = group_bytes + g * group_step;
      if (tokens >= kPrefetchTokens)
        for (int64_t line = 0; line < group_step; line += 64) __builtin_prefetch(group + kPrefetchBytes + line);
      if constexpr (shares_inputs<F, V>() && kTiles == 2 && kTokens == 0) {
        typename V::I codes[2][8];
        typename V::F scale[2][2], sums[2];
        for (int tile = 0; tile < 2; ++tile)
          F::unpack(head_bytes + tile * next_head, group + tile * next_group, head[tile], g, codes[tile], scale[tile], nullptr);
        for (int64_t t = 0; t < tokens; ++t) {
          float* const o[2] = {out + t * V::kLanes, out + (tokens + t) * V::kLanes};
          add_group_two<F, V>(codes, scale, in, at + t, o, sums);
          for (int tile = 0; tile < 2; ++tile) V::store_floats(o[tile], sums[tile]);
        }
        continue;
      }
      for (int tile = 0; tile < kTiles; ++tile) {
        typename V::I codes[8];
        typename V::F scale[2], min[2];
        F::unpack(head_bytes + tile * next_head, group + tile * next_group, head[tile], g, codes, scale, min);
        if constexpr (kTokens > 0) {
          for (int t = 0; t < kTokens; ++t) acc[tile][t] = add_group<F, V>(codes, scale, min, in, at + t, [&] { return acc[tile][t]; });
        } else {
          float* o = out + tile * tokens * V::kLanes;
          for (int64_t t = 0; t < tokens; ++t, o += V::kLanes)
            V::store_floats(o, add_group<F, V>(codes, scale, min, in, at + t, [&] { return V::load_floats(o); }));
        }
      }
    }
  }
  if constexpr (kTokens > 0)
    for (int i = 0; i < kTiles * kTokens; ++i) V::store_floats(out + i * V::kLanes, acc[i / kTokens][i % kTokens]);
}

template <typename F, typename V, int kTiles>
void multiply_tile(const uint8_t* data, const TileSpan& span, int64_t groups, const TokenTile& a, const Extra& extra, float* out) {
  // Two vectors of AVX2 leave registers for one token only.
  switch (kTiles == 2 && a.tokens > 1 ? kTokenTile : a.tokens) {
    case 1:
      return multiply<F, V, kTiles, 1>(data, span, groups, a, extra, out);
    case 2:
      return multiply<F, V, kTiles, 2>(data, span, groups, a, extra, out);
    case 3:
      return multiply<F, V, kTiles, 3>(data, span, groups, a, extra, out);
    case 4:
      return multiply<F, V, kTiles, 4>(data, span, groups, a, extra, out);
    default:
      break;
  }
  if constexpr (kTiles == 1 && kRegisterTokens<V> == 8) {
    switch (a.tokens) {
      case 5:
        return multiply<F, V, 1, 5>(data, span, groups, a, extra, out);
      case 6:
        return multiply<F, V, 1, 6>(data, span, groups, a, extra, out);
      case 7:
        return multiply<F, V, 1, 7>(data, span, groups, a, extra, out);
      case 8:
        return multiply<F, V, 1, 8>(data, span, groups, a, extra, out);
      default:
        break;
    }
  }
  multiply<F, V, kTiles, 0>(data, span, groups, a, extra, out);
}

struct Output {
  float* y;
  int64_t stride;
};

// Results of one token tile and up to kWriteRows rows. Written to y together, because a row of y is often a multiple of a page away
// from the next: one line of each at a time would push the others out of the same few cache sets.
constexpr int64_t kWriteRows = 64;
struct Results {
  alignas(64) float values[kTokenTile * kWriteRows];  // [piece][tokens][lanes of the piece]
  int64_t first = 0, rows = 0, pieces = 0;
  struct Piece {
    const float* values;
    int64_t lanes, live;
  } piece[kWriteRows / kRowTile];

  float* room(int64_t tokens) { return values + rows * tokens; }
  // `lanes` rows of the next room(), of which `live` exist.
  void add(int64_t tokens, int64_t lanes, int64_t live) {
    piece[pieces++] = {room(tokens), lanes, live};
    rows += lanes;
  }
  void write(const TokenTile& a, const Output& y) {
    float* to = y.y + a.first * y.stride + first;
    for (int64_t t = 0; t < a.tokens; ++t, to += y.stride) {
      float* at = to;
      for (int64_t i = 0; i < pieces; ++i) {
        std::memcpy(at, piece[i].values + t * piece[i].lanes, static_cast<size_t>(piece[i].live) * sizeof(float));
        at += piece[i].live;
      }
    }
    first += at_end();
    rows = pieces = 0;
  }

 private:
  int64_t at_end() const {
    int64_t n = 0;
    for (int64_t i = 0; i < pieces; ++i) n += piece[i].live;
    return n;
  }
};

// Rows [first, last) times one token tile: pairs of row tiles as one Wide vector (or two Narrow ones), a single one as Narrow.
template <template <typename> class F, typename Narrow, typename Wide>
void multiply_rows(const PackedMatrix& w, const TokenTile& a, const Output& y, int64_t first, int64_t last) {
  using N = F<Narrow>;
  const int64_t groups = w.columns / kGroup;
  const Extra extra = prepare_extra<N, Narrow::kSigned>(a, groups);
  Results results;
  results.first = first;
  for (int64_t row = first; row < last;) {
    const TileSpan span = tile_span<N>(row / kRowTile, w.rows, w.columns);
    const bool pair = span.paired && row / kRowTile % 2 == 0 && last - row > kRowTile;
    const bool two = shares_inputs<N, Wide>() && pair && a.tokens > kRegisterTokens<Wide> && last - row >= 4 * kRowTile;
    const int64_t rows = two ? 4 * kRowTile : pair ? 2 * kRowTile : kRowTile, lanes = pair ? Wide::kLanes : kRowTile;
    if (results.rows + rows > kWriteRows) results.write(a, y);
    float* out = results.room(a.tokens);
    if (two) {
      if constexpr (shares_inputs<N, Wide>()) multiply<F<Wide>, Wide, 2, 0>(w.data, span, groups, a, extra, out);
    } else if (pair) {
      multiply_tile<F<Wide>, Wide, 2 * kRowTile / Wide::kLanes>(w.data, span, groups, a, extra, out);
    } else {
      multiply_tile<N, Narrow, 1>(w.data, span, groups, a, extra, out);
    }
    for (int64_t done = 0; done < rows; done += lanes) {
      const int64_t left = last - row - done;
      results.add(a.tokens, lanes, left < lanes ? left : lanes);
    }
    row += rows;
  }
  results.write(a, y);
}

template <template <typename> class F, typename Narrow, typename Wide>
void matmul(const PackedMatrix& w, const Activations& a, float* y, int64_t y_stride, int64_t first, int64_t last) {
  using N = F<Narrow>;
  const int64_t row_bytes = packed_bytes(N::kEncoding, kRowTile, w.columns) / kRowTile + 1;
  const int64_t fitting = kRowBlockBytes / row_bytes / 16 * 16, block = fitting < 64 ? 64 : fitting;
  for (int64_t row = first; row < last; row += block)
    for (int64_t t = 0; t < a.tokens; t += kTokenTile)
      multiply_rows<F, Narrow, Wide>(w, token_tile(a, t), {y, y_stride}, row, row + block < last ? row + block : last);
}

}  // namespace
}  // namespace ridgeline
