// The attention kernels on lanes of `Vec`; included once per instruction set, after its vec_*.h. Scores and outputs are both
// products C[r, lanes] += sum_k A[r, k] B[k, lanes] with one fused multiply-add chain per element, in order of k.
#pragma once
#include "ops/attention_direct.h"
#include "ops/attention_walk.h"

namespace ridgeline {
namespace {

constexpr int64_t kDirectRows = 16;  // of one token: more rows pay for converting a panel first

struct Product {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t count;  // of k
};

// kFresh: the sums start at 0 instead of going on with c.
template <bool kFresh, int R, int N>
void product_block(const Product& product) {
  const Product p = product;
  const float* b = p.b;
  Reg sums[R][N];
  each_sum<R, N>([&](int r, int n) { sums[r][n] = kFresh ? Vec::zero() : Vec::load(p.c + r * p.c_stride + n * kLanes); });
  for (int64_t k = 0; k < p.count; ++k, b += p.b_stride) {
    Reg columns[N];
    for (int n = 0; n < N; ++n) columns[n] = Vec::load(b + n * kLanes);
    for (int r = 0; r < R; ++r) {
      const Reg factor = Vec::set1(p.a[r * p.a_stride + k]);
      for (int n = 0; n < N; ++n) sums[r][n] = Vec::fma(factor, columns[n], sums[r][n]);
    }
  }
  each_sum<R, N>([&](int r, int n) { Vec::store(p.c + r * p.c_stride + n * kLanes, sums[r][n]); });
}

template <bool kFresh>
struct RunProduct {
  const Product& p;
  template <int R, int N>
  void run() const {
    product_block<kFresh, R, N>(p);
  }
};

// `rows` at most kRowBlock, `columns` a multiple of the lanes.
template <bool kFresh>
inline void product(Product p, int64_t rows, int64_t columns) {
  for (int64_t vectors = columns / kLanes; vectors > 0; vectors -= kVectors) {
    with_block<kVectors>(rows, vectors, RunProduct<kFresh>{p});
    p.b += kVectors * kLanes;
    p.c += kVectors * kLanes;
  }
}

// Scores of keys [keys.from, keys.to) of a panel for all rows that see some of them; b[d * stride + key - first] is the panel.
void panel_scores(const Walk& w, const float* b, int64_t stride, int64_t first, Range keys) {
  const AttentionTile& t = w.tile;
  const int64_t k_dim = t.pool->k_dim;
  for (int64_t r0 = 0; r0 < t.rows; r0 += kRowBlock) {
    const int64_t r1 = at_most(r0 + kRowBlock, t.rows);
    const Range seen = w.any(r0, r1);
    const int64_t from = first + lanes_down(at_least(seen.from, keys.from) - first);
    const int64_t to = first + lanes_up(at_most(seen.to, keys.to) - first);
    if (seen.empty() || from >= to) continue;
    float* c = w.scratch.scores + r0 * kKeySegment + from;
    Product p{t.q + r0 * k_dim, k_dim, b + (from - first), stride, c, kKeySegment, k_dim};
    if (t.split_k && r1 - r0 < kRowBlock) {  // broken on purpose: two sums over half the dimensions each
      p.count = k_dim / 2;
      product<true>(p, r1 - r0, to - from);
      float halves[kRowBlock * kKeySegment];
      p = {t.q + r0 * k_dim + k_dim / 2, k_dim, b + (from - first) + k_dim / 2 * stride, stride, halves, kKeySegment, k_dim - k_dim / 2};
      product<true>(p, r1 - r0, to - from);
      for (int64_t r = 0; r < r1 - r0; ++r) {
        for (int64_t i = 0; i < to - from; ++i) c[r * kKeySegment + i] += halves[r * kKeySegment + i];
      }
      continue;
    }
    product<true>(p, r1 - r0, to - from);
  }
}

// Adds probability times value for keys [keys.from, keys.to); b is the row of key keys.from. Keys that only some rows of a
// register block see are added row by row, in order: a row never meets a key that it does not see.
void panel_values(const Walk& w, const float* b, int64_t stride, Range keys, const AttentionState& state) {
  const AttentionTile& t = w.tile;
  const int64_t width = v_stride(t.pool->v_dim);
  const auto add = [&](int64_t row, int64_t rows, int64_t from, int64_t to) {
    if (from >= to) return;
    product<false>({w.scratch.scores + row * kKeySegment + from, kKeySegment, b + (from - keys.from) * stride, stride,
                    state.out + row * width, width, to - from},
                   rows, width);
  };
  for (int64_t r0 = 0; r0 < t.rows; r0 += kRowBlock) {
    const int64_t r1 = at_most(r0 + kRowBlock, t.rows);
    Range all = w.common(r0, r1);
    all = {at_least(all.from, keys.from), at_most(all.to, keys.to)};
    if (all == keys) {
      add(r0, r1 - r0, keys.from, keys.to);
      continue;
    }
    for (int64_t r = r0; r < r1; ++r) {
      const Range mine = w.row(r);
      add(r, 1, at_least(mine.from, keys.from), at_most(at_most(mine.to, keys.to), all.empty() ? keys.to : all.from));
    }
    if (all.empty()) continue;
    add(r0, r1 - r0, all.from, all.to);
    for (int64_t r = r0; r < r1; ++r) add(r, 1, all.to, at_most(w.row(r).to, keys.to));
  }
}

// A panel's keys as floats; those of int8 without their scale, which the scores are multiplied with.
template <typename L>
void stage_keys(const Walk& w, int64_t first, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const bool whole = pool.block_size % kLanes == 0 && w.tile.segment % kLanes == 0;
  each_run(w, keys, [&](int64_t slot, int64_t key, int64_t count) {
    const auto* k = reinterpret_cast<const typename L::T*>(pool.k_head(w.block(key), w.tile.kv_head));
    const int64_t before = whole ? slot - lanes_down(slot) : 0, at = key - first - before;
    for (int64_t d = 0; d < pool.k_dim; ++d) {
      const auto* from = k + d * pool.block_size + slot - before;
      float* to = w.scratch.keys + d * kKeyPanel + at;
      if (whole) {
        for (int64_t i = 0; i < before + count; i += kLanes) Vec::store(to + i, L::load(from + i));
      } else {
        for (int64_t i = 0; i < count; ++i) to[i] = L::one(from[i]);
      }
    }
  });
}

template <>
void stage_keys<LoadInt4>(const Walk& w, int64_t first, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const bool whole = pool.block_size % kLanes == 0 && w.tile.segment % kLanes == 0;
  each_run(w, keys, [&](int64_t slot, int64_t key, int64_t count) {
    const uint8_t* k = pool.k_head(w.block(key), w.tile.kv_head);
    const int64_t before = whole ? slot - lanes_down(slot) : 0;
    for (int64_t d = 0; d < pool.k_dim; ++d) {
      const KvNibble nibble = kv_nibble(d, pool.k_dim);
      const uint8_t* from = k + nibble.byte * pool.block_size + slot - before;
      const float* steps = w.scratch.k_scales + d / kKvGroup * 2 * kKeySegment + key - before;
      float* to = w.scratch.keys + d * kKeyPanel + key - first - before;
      if (whole) {
        for (int64_t i = 0; i < before + count; i += kLanes) {
          Vec::store(to + i, Vec::fma(Vec::load_u4(from + i, nibble.shift), Vec::load(steps + i), Vec::load(steps + kKeySegment + i)));
        }
      } else {
        for (int64_t i = 0; i < count; ++i) {
          to[i] = __builtin_fmaf(static_cast<float>((from[i] >> nibble.shift) & 15), steps[i], steps[kKeySegment + i]);
        }
      }
    }
  });
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

template <>
void stage_values<LoadInt4>(const Walk& w, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const int64_t dim = pool.v_aliases_k ? pool.k_dim : pool.v_dim, width = v_stride(pool.v_dim), groups = 2 * kv_groups(dim);
  const int64_t whole = !pool.v_aliases_k && pool.v_dim % kKvGroup == 0 ? pool.v_dim : 0;
  for (int64_t key = keys.from; key < keys.to; ++key) {
    float* to = w.scratch.values + (key - keys.from) * width;
    const int64_t block = w.block(key), slot = w.slot(key), next = pool.v_aliases_k ? pool.block_size : 1;
    const uint8_t* from =
        pool.v_aliases_k ? pool.k_head(block, w.tile.kv_head) + slot : pool.v_head(block, w.tile.kv_head) + slot * pool.v_row();
    // Step and least of a group; those of keys are rows of the segment.
    const float* scales = pool.v_aliases_k ? w.scratch.k_scales + key : w.scratch.v_scales + key * groups;
    const int64_t apart = pool.v_aliases_k ? kKeySegment : 1;
    for (int64_t d = 0; d < whole; d += kLanes) {
      const KvNibble at = kv_nibble(d, dim);
      const float* scale = scales + d / kKvGroup * 2;
      Vec::store(to + d, Vec::fma(Vec::load_u4(from + at.byte, at.shift), Vec::set1(scale[0]), Vec::set1(scale[1])));
    }
    for (int64_t d = whole; d < pool.v_dim; ++d) {
      const KvNibble at = kv_nibble(d, dim);
      const float* scale = scales + d / kKvGroup * 2 * apart;
      to[d] = __builtin_fmaf(static_cast<float>((from[at.byte * next] >> at.shift) & 15), scale[0], scale[apart]);
    }
    for (int64_t d = pool.v_dim; d < width; ++d) to[d] = 0.0f;
  }
}

// Many rows: a panel is converted once and read by all of them.
void segment_staged(const Walk& w, Range keys, const AttentionState& state) {
  const KvPool& pool = *w.tile.pool;
  decode_key_scales(w, keys);
  for (int64_t first = keys.from / kKeyPanel * kKeyPanel; first < keys.to; first += kKeyPanel) {
    const Range panel{at_least(first, keys.from), at_most(first + kKeyPanel, keys.to)};
    with_loader(pool.k_dtype, [&](auto loader) { stage_keys<decltype(loader)>(w, first, panel); });
    panel_scores(w, w.scratch.keys, kKeyPanel, first, panel);
  }
  decode_value_scales(w, keys);
  for (int64_t r = 0; r < w.tile.rows; ++r) {
    if (!w.row(r).empty()) softmax_rows(w, r, r + 1, w.row(r), state);
  }
  for (int64_t first = keys.from / kKeyPanel * kKeyPanel; first < keys.to; first += kKeyPanel) {
    const Range panel{at_least(first, keys.from), at_most(first + kKeyPanel, keys.to)};
    with_loader(pool.v_aliases_k ? pool.k_dtype : pool.v_dtype, [&](auto loader) { stage_values<decltype(loader)>(w, panel); });
    panel_values(w, w.scratch.values, v_stride(pool.v_dim), panel, state);
  }
}

void attend_segment(const AttentionTile& tile, int64_t s, const AttentionAhead& ahead, const AttentionScratch& scratch,
                    const AttentionState& state) {
  const Walk w{tile, scratch, s * tile.segment};
  const Range keys = w.any(0, tile.rows);
  if (keys.empty()) return;
  const KvPool& pool = *tile.pool;
  const int64_t lanes = pool.v_dtype == KvDtype::kInt4 ? kKvGroup : 16;
  const bool whole = pool.block_size % kLanes == 0 && pool.v_dim % lanes == 0 && tile.segment % kLanes == 0 && !pool.v_aliases_k;
  if (whole && (tile.rows <= kRowBlock || (tile.rows <= kDirectRows && w.common(0, tile.rows) == keys))) {
    segment_direct(w, ahead, state);
  } else {
    segment_staged(w, keys, state);
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

void scale_row(const float* x, float factor, float* out, int64_t n) {
  const Reg f = constant(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Vec::store(out + i, Vec::mul(Vec::load(x + i), f));
  if (i < n) Vec::store_n(out + i, Vec::mul(Vec::load_n(x + i, n - i), f), n - i);
}

void finish_row(const AttentionTile& tile, int64_t row, const AttentionState& total, float* out) {
  const int64_t v_dim = tile.pool->v_dim;
  const float* from = total.out + row * v_stride(v_dim);
  scale_row(from, 1.0f / total.sum[row], out, v_dim);
}

AttentionKernels make_attention(const char* name) { return {attend_segment, merge_segment, finish_row, scale_row, name}; }

}  // namespace
}  // namespace ridgeline
