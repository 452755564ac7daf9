// The attention kernels on lanes of `Vec`; included once per instruction set, after its vec_*.h. Scores and outputs are both
// products C[r, lanes] += sum_k A[r, k] B[k, lanes] with one fused multiply-add chain per element, in order of k.
#pragma once
#include <cstdint>

#include "ops/attention.h"
#include "ops/half.h"
#include "ops/math_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kLanes = Vec::kLanes;
constexpr int kRowBlock = 6;
constexpr int kVectors = Vec::kScoreVectors;

struct LoadF32 {
  using T = float;
  static Reg load(const T* p) { return Vec::load(p); }
  static float one(T x) { return x; }
};
struct LoadBf16 {
  using T = uint16_t;
  static Reg load(const T* p) { return Vec::load_bf16(p); }
  static float one(T x) { return bf16_to_float(x); }
};
struct LoadF16 {
  using T = uint16_t;
  static Reg load(const T* p) { return Vec::load_f16(p); }
  static float one(T x) { return f16_to_float(x); }
};

struct Product {
  const float* a;
  int64_t a_stride;
  const void* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t count;  // of k
  bool fresh;     // start the sums at 0 instead of going on with c
};

template <typename L, int R, int N>
void product_block(const Product& p) {
  const auto* b = static_cast<const typename L::T*>(p.b);
  Reg sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n] = p.fresh ? Vec::zero() : Vec::load(p.c + r * p.c_stride + n * kLanes);
  }
  for (int64_t k = 0; k < p.count; ++k) {
    Reg columns[N];
    for (int n = 0; n < N; ++n) columns[n] = L::load(b + k * p.b_stride + n * kLanes);
    for (int r = 0; r < R; ++r) {
      const Reg factor = Vec::set1(p.a[r * p.a_stride + k]);
      for (int n = 0; n < N; ++n) sums[r][n] = Vec::fma(factor, columns[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) Vec::store(p.c + r * p.c_stride + n * kLanes, sums[r][n]);
  }
}

template <typename L, int R>
inline void product_columns(const Product& p, int vectors) {
  if (vectors == 1) return product_block<L, R, 1>(p);
  if (vectors == 2) return product_block<L, R, 2>(p);
  if constexpr (kVectors > 2) {
    if (vectors == 3) return product_block<L, R, 3>(p);
    product_block<L, R, 4>(p);
  }
}

// `rows` at most kRowBlock, `columns` a multiple of the lanes.
template <typename L>
inline void product(Product p, int64_t rows, int64_t columns) {
  for (int64_t done = 0; done < columns; done += kVectors * kLanes) {
    const int64_t vectors = (columns - done) / kLanes;
    const int now = vectors < kVectors ? static_cast<int>(vectors) : kVectors;
    switch (rows) {
      case 1:
        product_columns<L, 1>(p, now);
        break;
      case 2:
        product_columns<L, 2>(p, now);
        break;
      case 3:
        product_columns<L, 3>(p, now);
        break;
      case 4:
        product_columns<L, 4>(p, now);
        break;
      case 5:
        product_columns<L, 5>(p, now);
        break;
      default:
        product_columns<L, 6>(p, now);
    }
    p.b = static_cast<const typename L::T*>(p.b) + kVectors * kLanes;
    p.c += kVectors * kLanes;
  }
}

inline int64_t at_least(int64_t x, int64_t low) { return x < low ? low : x; }
inline int64_t at_most(int64_t x, int64_t high) { return x < high ? x : high; }
inline int64_t lanes_down(int64_t x) { return x / kLanes * kLanes; }
inline int64_t lanes_up(int64_t x) { return (x + kLanes - 1) / kLanes * kLanes; }

// Keys [from, to) counted from the segment's start; empty where from >= to.
struct Range {
  int64_t from, to;
  bool empty() const { return from >= to; }
};

struct Walk {
  const AttentionTile& tile;
  const AttentionScratch& scratch;
  int64_t base;  // position of the segment's first key

  Range row(int64_t r) const { return {at_least(tile.first[r] - base, 0), at_most(tile.last[r] - base, tile.segment)}; }
  // Union and intersection of the ranges of rows [r0, r1).
  Range any(int64_t r0, int64_t r1) const {
    Range all{tile.segment, 0};
    for (int64_t r = r0; r < r1; ++r) {
      const Range mine = row(r);
      if (!mine.empty()) all = {at_most(mine.from, all.from), at_least(mine.to, all.to)};
    }
    return all;
  }
  Range common(int64_t r0, int64_t r1) const {
    Range all{0, tile.segment};
    for (int64_t r = r0; r < r1; ++r) {
      const Range mine = row(r);
      all = {at_least(mine.from, all.from), at_most(mine.to, all.to)};
    }
    return all;
  }
  int64_t block(int64_t key) const { return tile.table[(base + key) / tile.pool->block_size]; }
  int64_t slot(int64_t key) const { return (base + key) % tile.pool->block_size; }
  // One past the last key that lies in the same block as `key`.
  int64_t block_end(int64_t key) const { return key + tile.pool->block_size - slot(key); }
};

// Scores of keys [keys.from, keys.to) of a panel for all rows that see some of them; b[d * stride + key - first] is the panel.
template <typename L>
void panel_scores(const Walk& w, const typename L::T* b, int64_t stride, int64_t first, Range keys) {
  const AttentionTile& t = w.tile;
  const int64_t k_dim = t.pool->k_dim;
  for (int64_t r0 = 0; r0 < t.rows; r0 += kRowBlock) {
    const int64_t r1 = at_most(r0 + kRowBlock, t.rows);
    const Range seen = w.any(r0, r1);
    const int64_t from = first + lanes_down(at_least(seen.from, keys.from) - first);
    const int64_t to = first + lanes_up(at_most(seen.to, keys.to) - first);
    if (seen.empty() || from >= to) continue;
    float* c = w.scratch.scores + r0 * kKeySegment + from;
    Product p{t.q + r0 * k_dim, k_dim, b + (from - first), stride, c, kKeySegment, k_dim, true};
    if (t.split_k && r1 - r0 < kRowBlock) {  // broken on purpose: two sums over half the dimensions each
      p.count = k_dim / 2;
      product<L>(p, r1 - r0, to - from);
      float halves[kRowBlock * kKeySegment];
      p = {t.q + r0 * k_dim + k_dim / 2,
           k_dim,
           b + (from - first) + k_dim / 2 * stride,
           stride,
           halves,
           kKeySegment,
           k_dim - k_dim / 2,
           true};
      product<L>(p, r1 - r0, to - from);
      for (int64_t r = 0; r < r1 - r0; ++r) {
        for (int64_t i = 0; i < to - from; ++i) c[r * kKeySegment + i] += halves[r * kKeySegment + i];
      }
      continue;
    }
    product<L>(p, r1 - r0, to - from);
  }
}

// Adds probability times value for keys [keys.from, keys.to); b is the row of key keys.from. Keys that only some rows of a
// register block see are added row by row, in order: a row never meets a key that it does not see.
template <typename L>
void panel_values(const Walk& w, const typename L::T* b, int64_t stride, Range keys, const AttentionState& state) {
  const AttentionTile& t = w.tile;
  const int64_t width = v_stride(t.pool->v_dim);
  const auto add = [&](int64_t row, int64_t rows, int64_t from, int64_t to) {
    if (from >= to) return;
    product<L>({w.scratch.scores + row * kKeySegment + from, kKeySegment, b + (from - keys.from) * stride, stride, state.out + row * width,
                width, to - from, false},
               rows, width);
  };
  for (int64_t r0 = 0; r0 < t.rows; r0 += kRowBlock) {
    const int64_t r1 = at_most(r0 + kRowBlock, t.rows);
    Range all = w.common(r0, r1);
    all = {at_least(all.from, keys.from), at_most(all.to, keys.to)};
    for (int64_t r = r0; r < r1; ++r) {
      const Range mine = w.row(r);
      add(r, 1, at_least(mine.from, keys.from), at_most(at_most(mine.to, keys.to), all.empty() ? keys.to : all.from));
    }
    if (all.empty()) continue;
    add(r0, r1 - r0, all.from, all.to);
    for (int64_t r = r0; r < r1; ++r) add(r, 1, all.to, at_most(w.row(r).to, keys.to));
  }
}

// Turns a row's scores into exp(score - max), and its max and sum.
void softmax_row(float* scores, Range keys, float cap, float* largest, float* sum) {
  const Reg none = constant(-__builtin_inff()), c = constant(cap), inverse = constant(cap == 0 ? 0.0f : 1.0f / cap);
  Reg best = none;
  for (int64_t i = lanes_down(keys.from); i < keys.to; i += kLanes) {
    Reg x = Vec::load(scores + i);
    if (cap != 0) x = softcap_lanes(x, c, inverse);
    if (i < keys.from || i + kLanes > keys.to) x = Vec::select(Vec::lanes(keys.from - i, keys.to - i), x, none);
    Vec::store(scores + i, x);
    best = Vec::max(best, x);
  }
  const float top = Vec::largest(best);
  Reg total = Vec::zero();
  for (int64_t i = lanes_down(keys.from); i < keys.to; i += kLanes) {
    const Reg p = exp_lanes(Vec::sub(Vec::load(scores + i), constant(top)));
    Vec::store(scores + i, p);
    total = Vec::add(total, p);
  }
  *largest = top;
  *sum = Vec::sum(total);
}

void softmax_rows(const Walk& w, const AttentionState& state) {
  const int64_t width = v_stride(w.tile.pool->v_dim);
  for (int64_t r = 0; r < w.tile.rows; ++r) {
    const Range mine = w.row(r);
    if (mine.empty()) continue;
    softmax_row(w.scratch.scores + r * kKeySegment, mine, w.tile.softcap, state.largest + r, state.sum + r);
    for (int64_t i = 0; i < width; ++i) state.out[r * width + i] = 0.0f;
  }
}

// Few rows: every number of the cache is used by one register block, so it is converted on the way.
template <typename L>
void segment_direct(const Walk& w, Range keys, const AttentionState& state) {
  const KvPool& pool = *w.tile.pool;
  for (int64_t key = keys.from; key < keys.to;) {
    const int64_t slot = lanes_down(w.slot(key)), first = key - (w.slot(key) - slot), end = at_most(w.block_end(key), keys.to);
    const auto* k = reinterpret_cast<const typename L::T*>(pool.k_head(w.block(key), w.tile.kv_head)) + slot;
    panel_scores<L>(w, k, pool.block_size, first, {key, end});
    key = end;
  }
  softmax_rows(w, state);
  for (int64_t key = keys.from; key < keys.to;) {
    const int64_t end = at_most(w.block_end(key), keys.to);
    const auto* v = reinterpret_cast<const typename L::T*>(pool.v_head(w.block(key), w.tile.kv_head)) + w.slot(key) * pool.v_dim;
    panel_values<L>(w, v, pool.v_dim, {key, end}, state);
    key = end;
  }
}

template <typename L>
void stage_keys(const Walk& w, int64_t first, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const bool whole = pool.block_size % kLanes == 0 && w.tile.segment % kLanes == 0;
  for (int64_t key = keys.from; key < keys.to;) {
    int64_t slot = w.slot(key), at = key - first;
    const int64_t end = at_most(w.block_end(key), keys.to);
    const auto* k = reinterpret_cast<const typename L::T*>(pool.k_head(w.block(key), w.tile.kv_head));
    if (whole) {
      at -= slot - lanes_down(slot);
      slot = lanes_down(slot);
    }
    for (int64_t d = 0; d < pool.k_dim; ++d) {
      const auto* from = k + d * pool.block_size + slot;
      float* to = w.scratch.keys + d * kKeyPanel + at;
      if (whole) {
        for (int64_t i = 0; i < end - first - at; i += kLanes) Vec::store(to + i, L::load(from + i));
      } else {
        for (int64_t i = 0; i < end - key; ++i) to[i] = L::one(from[i]);
      }
    }
    key = end;
  }
}

template <typename L>
void stage_values(const Walk& w, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const int64_t width = v_stride(pool.v_dim), whole = pool.v_aliases_k ? 0 : lanes_down(pool.v_dim);
  for (int64_t key = keys.from; key < keys.to; ++key) {
    float* to = w.scratch.values + (key - keys.from) * width;
    const int64_t block = w.block(key), slot = w.slot(key);
    const uint8_t* head = pool.v_aliases_k ? pool.k_head(block, w.tile.kv_head) : pool.v_head(block, w.tile.kv_head);
    const int64_t step = pool.v_aliases_k ? pool.block_size : 1;
    const auto* from = reinterpret_cast<const typename L::T*>(head) + (pool.v_aliases_k ? slot : slot * pool.v_dim);
    for (int64_t d = 0; d < whole; d += kLanes) Vec::store(to + d, L::load(from + d));
    for (int64_t d = whole; d < pool.v_dim; ++d) to[d] = L::one(from[d * step]);
    for (int64_t d = pool.v_dim; d < width; ++d) to[d] = 0.0f;
  }
}

// Many rows: a panel is converted once and read by all of them.
template <typename L>
void segment_staged(const Walk& w, Range keys, const AttentionState& state) {
  for (int64_t first = keys.from / kKeyPanel * kKeyPanel; first < keys.to; first += kKeyPanel) {
    const Range panel{at_least(first, keys.from), at_most(first + kKeyPanel, keys.to)};
    stage_keys<L>(w, first, panel);
    panel_scores<LoadF32>(w, w.scratch.keys, kKeyPanel, first, panel);
  }
  softmax_rows(w, state);
  for (int64_t first = keys.from / kKeyPanel * kKeyPanel; first < keys.to; first += kKeyPanel) {
    const Range panel{at_least(first, keys.from), at_most(first + kKeyPanel, keys.to)};
    stage_values<L>(w, panel);
    panel_values<LoadF32>(w, w.scratch.values, v_stride(w.tile.pool->v_dim), panel, state);
  }
}

template <typename L>
void segment_as(const Walk& w, Range keys, const AttentionState& state) {
  const KvPool& pool = *w.tile.pool;
  const bool whole = pool.block_size % kLanes == 0 && pool.v_dim % 16 == 0 && w.tile.segment % kLanes == 0 && !pool.v_aliases_k;
  if (whole && w.tile.rows <= kRowBlock) {
    segment_direct<L>(w, keys, state);
  } else {
    segment_staged<L>(w, keys, state);
  }
}

void attend_segment(const AttentionTile& tile, int64_t s, const AttentionScratch& scratch, const AttentionState& state) {
  const Walk w{tile, scratch, s * tile.segment};
  const Range keys = w.any(0, tile.rows);
  if (keys.empty()) return;
  switch (tile.pool->dtype) {
    case KvDtype::kF32:
      return segment_as<LoadF32>(w, keys, state);
    case KvDtype::kBF16:
      return segment_as<LoadBf16>(w, keys, state);
    case KvDtype::kF16:
      return segment_as<LoadF16>(w, keys, state);
  }
}

inline float exp_one(float x) {
  float lanes[kLanes];
  Vec::store(lanes, exp_lanes(constant(x)));
  return lanes[0];
}

void merge_segment(const AttentionTile& tile, int64_t s, const AttentionState& part, const AttentionState& total) {
  const int64_t width = v_stride(tile.pool->v_dim), base = s * tile.segment;
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (tile.first[r] >= base + tile.segment || tile.last[r] <= base) continue;
    float* out = total.out + r * width;
    const float* mine = part.out + r * width;
    if (tile.first[r] >= base) {
      total.largest[r] = part.largest[r];
      total.sum[r] = part.sum[r];
      for (int64_t i = 0; i < width; i += kLanes) Vec::store(out + i, Vec::load(mine + i));
      continue;
    }
    const float top = total.largest[r] > part.largest[r] ? total.largest[r] : part.largest[r];
    const float before = exp_one(total.largest[r] - top), now = exp_one(part.largest[r] - top);
    total.largest[r] = top;
    total.sum[r] = __builtin_fmaf(total.sum[r], before, part.sum[r] * now);
    const Reg b = constant(before), n = constant(now);
    for (int64_t i = 0; i < width; i += kLanes) Vec::store(out + i, Vec::fma(Vec::load(out + i), b, Vec::mul(Vec::load(mine + i), n)));
  }
}

void finish_row(const AttentionTile& tile, int64_t row, const AttentionState& total, float* out) {
  const int64_t v_dim = tile.pool->v_dim;
  const float* from = total.out + row * v_stride(v_dim);
  const Reg inverse = constant(1.0f / total.sum[row]);
  for (int64_t i = 0; i < v_dim; i += kLanes) Vec::store_n(out + i, Vec::mul(Vec::load(from + i), inverse), v_dim - i);
}

void scale_query(const float* x, float factor, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Vec::store_n(out + i, Vec::mul(Vec::load_n(x + i, n - i), constant(factor)), n - i);
}

AttentionKernels make_attention(const char* name) { return {attend_segment, merge_segment, finish_row, scale_query, name}; }

}  // namespace
}  // namespace ridgeline
