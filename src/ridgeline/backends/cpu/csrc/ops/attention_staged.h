// Attention of many rows: a panel of keys is converted once and read by all of them. Scores and outputs are both products
// C[r, lanes] += sum_k A[r, k] B[k, lanes] with one chain of fused multiply-adds per element, in order of k.
#pragma once
#include "ops/attention_walk.h"

namespace ridgeline {
namespace {

struct Product {  // of floats, or of pairs in their place
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int64_t count;  // of k
};

// kFresh: the sums start at 0 instead of going on with c.
template <typename Kind, bool kFresh, int R, int N>
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
      for (int n = 0; n < N; ++n) sums[r][n] = Kind::mul_add(factor, columns[n], sums[r][n]);
    }
  }
  each_sum<R, N>([&](int r, int n) { Vec::store(p.c + r * p.c_stride + n * kLanes, sums[r][n]); });
}

template <typename Kind, bool kFresh>
struct RunProduct {
  const Product& p;
  template <int R, int N>
  void run() const {
    product_block<Kind, kFresh, R, N>(p);
  }
};

// `rows` at most kRowBlock, `columns` a multiple of the lanes.
template <typename Kind, bool kFresh>
inline void product(Product p, int64_t rows, int64_t columns) {
  for (int64_t vectors = columns / kLanes; vectors > 0; vectors -= kVectors) {
    with_block<kVectors>(rows, vectors, RunProduct<Kind, kFresh>{p});
    p.b += kVectors * kLanes;
    p.c += kVectors * kLanes;
  }
}

// The memory of the panel that comes after the one being multiplied, asked for a little with each register block: blocks lie anywhere, so
// the CPU does not foresee them, and all at once would fill its queue of misses.
class PanelAhead {
 public:
  // Keys [from, to) by position, up to the end of the first panel; values: theirs instead.
  PanelAhead(const KvPool& pool, const AttentionAhead& next, bool values, int64_t row_blocks) {
    if (row_blocks > kMostBlocks || next.table == nullptr || pool.block_size % kChunk != 0 || (values && pool.v_aliases_k)) return;
    const int64_t row = values ? pool.v_row() : pool.k_row(), end = at_most(next.to, (next.from / kKeyPanel + 1) * kKeyPanel);
    for (int64_t key = next.from / kChunk * kChunk; key < end; key += kChunk) {
      const int64_t block = next.table[key / pool.block_size], slot = key % pool.block_size;
      parts_[count_++] = (values ? pool.v_head(block, next.kv_head) : pool.k_head(block, next.kv_head)) + slot * row;
    }
    bytes_ = kChunk * row;
    each_ = (count_ * bytes_ / kLineBytes + row_blocks - 1) / row_blocks;
  }

  void ask() {
    for (int64_t i = 0; i < each_ && part_ < count_; ++i) {
      __builtin_prefetch(parts_[part_] + at_, 0, kSecondLevel);
      at_ += kLineBytes;
      if (at_ < bytes_) continue;
      at_ = 0;
      ++part_;
    }
  }

 private:
  static constexpr int64_t kChunk = 16, kLineBytes = 64;
  static constexpr int64_t kMostBlocks = 16;  // beside more products the memory does not show
  const uint8_t* parts_[kKeyPanel / kChunk + 1];
  int64_t count_ = 0, bytes_ = 0, each_ = 0, part_ = 0, at_ = 0;
};

// Scores of keys [keys.from, keys.to) of a panel for all rows that see some of them; b[d / kStep * stride + key - first] is the panel.
template <typename Kind>
void panel_scores(const Walk& w, const float* b, int64_t stride, int64_t first, Range keys, PanelAhead& next) {
  const AttentionTile& t = w.tile;
  const int64_t k_dim = t.pool->k_dim, steps = k_dim / Kind::kStep;
  for (int64_t r0 = 0; r0 < t.rows; r0 += kRowBlock) {
    const int64_t r1 = at_most(r0 + kRowBlock, t.rows);
    next.ask();
    const Range seen = w.any(r0, r1);
    const int64_t from = first + lanes_down(at_least(seen.from, keys.from) - first);
    const int64_t to = first + lanes_up(at_most(seen.to, keys.to) - first);
    if (seen.empty() || from >= to) continue;
    float* c = w.scratch.scores + r0 * kKeySegment + from;
    Product p{t.q + r0 * k_dim, k_dim, b + (from - first), stride, c, kKeySegment, steps};
    if (t.split_k && r1 - r0 < kRowBlock) {  // broken on purpose: two sums over half the dimensions each
      p.count = steps / 2;
      product<Kind, true>(p, r1 - r0, to - from);
      float halves[kRowBlock * kKeySegment];
      p = {t.q + r0 * k_dim + steps / 2, k_dim, b + (from - first) + steps / 2 * stride, stride, halves, kKeySegment, steps - steps / 2};
      product<Kind, true>(p, r1 - r0, to - from);
      for (int64_t r = 0; r < r1 - r0; ++r) {
        for (int64_t i = 0; i < to - from; ++i) c[r * kKeySegment + i] += halves[r * kKeySegment + i];
      }
      continue;
    }
    product<Kind, true>(p, r1 - r0, to - from);
  }
}

// Adds probability times value for keys [keys.from, keys.to); b begins with the step that holds key keys.from: a key, or a pair of keys
// with zeros for those that are not among them. Steps that only some rows of a register block see, or only half of, are added row by row,
// in order: a row never meets a key that it does not see.
template <typename Kind>
void panel_values(const Walk& w, const float* b, int64_t stride, Range keys, const AttentionState& state, PanelAhead& next) {
  constexpr int64_t kStep = Kind::kStep;
  const AttentionTile& t = w.tile;
  const int64_t width = v_stride(t.pool->v_dim), before = keys.from / kStep;
  const auto up = [](int64_t key) { return (key + kStep - 1) / kStep; };
  const auto add = [&](int64_t row, int64_t rows, int64_t from, int64_t to) {
    if (from >= to) return;
    product<Kind, false>({w.scratch.scores + row * kKeySegment + from, kKeySegment, b + (from - before) * stride, stride,
                          state.out + row * width, width, to - from},
                         rows, width);
  };
  // A pair of which the row sees one key.
  const auto add_half = [&](int64_t row, int64_t pair, bool high) {
    if constexpr (kStep == 2) {
      const Reg factor = Vec::set1(w.scratch.scores[row * kKeySegment + pair]);
      float* out = state.out + row * width;
      for (int64_t i = 0; i < width; i += kLanes) {
        const Reg column = Kind::keep(Vec::load(b + (pair - before) * stride + i), !high, high);
        Vec::store(out + i, Kind::mul_add(factor, column, Vec::load(out + i)));
      }
    }
  };
  // Steps [from, to) for one row, which sees something of each.
  const auto add_row = [&](int64_t row, int64_t from, int64_t to) {
    const Range mine = w.row(row);
    if (from < to && kStep * from < mine.from) add_half(row, from++, true);
    const bool half = from < to && kStep * to > mine.to;
    add(row, 1, from, to - half);
    if (half) add_half(row, to - 1, false);
  };
  for (int64_t r0 = 0; r0 < t.rows; r0 += kRowBlock) {
    const int64_t r1 = at_most(r0 + kRowBlock, t.rows);
    next.ask();
    Range all = w.common(r0, r1);
    all = {at_least(all.from, keys.from), at_most(all.to, keys.to)};
    if (all == keys) {
      add(r0, r1 - r0, before, up(keys.to));
      continue;
    }
    const Range whole{up(all.from), all.to / kStep};  // that every row sees all of
    for (int64_t r = r0; r < r1; ++r) {
      const int64_t from = at_least(w.row(r).from, keys.from) / kStep, to = up(at_most(w.row(r).to, keys.to));
      add_row(r, from, whole.empty() ? to : whole.from);
    }
    if (whole.empty()) continue;
    add(r0, r1 - r0, whole.from, whole.to);
    for (int64_t r = r0; r < r1; ++r) add_row(r, whole.to, up(at_most(w.row(r).to, keys.to)));
  }
}

// A panel's keys as floats or pairs; those of int8 without their scale, which the scores are multiplied with.
template <typename L>
void stage_keys(const Walk& w, int64_t first, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const bool whole = pool.block_size % kLanes == 0 && w.tile.segment % kLanes == 0;
  each_run(w, keys, [&](int64_t slot, int64_t key, int64_t count) {
    const auto* k = reinterpret_cast<const typename L::T*>(pool.k_head(w.block(key), w.tile.kv_head));
    const int64_t before = whole ? slot - lanes_down(slot) : 0, at = key - first - before;
    for (int64_t d = 0; d < pool.k_dim; d += L::kStep) {
      const auto* from = k + d * pool.block_size + slot - before;
      float* to = w.scratch.keys + d / L::kStep * kKeyPanel + at;
      if (whole) {
        for (int64_t i = 0; i < before + count; i += kLanes) Vec::store(to + i, load_step<L>(from + i, pool.block_size));
      } else {
        for (int64_t i = 0; i < count; ++i) store_step<L>(to + i, from + i, pool.block_size);
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

template <typename L>
void stage_value_pairs(const Walk& w, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const int64_t width = v_stride(pool.v_dim), whole = lanes_down(pool.v_dim);
  const auto row = [&](int64_t key) {
    return reinterpret_cast<const typename L::T*>(pool.v_head(w.block(key), w.tile.kv_head)) + w.slot(key) * pool.v_dim;
  };
  for (int64_t pair = keys.from / 2; 2 * pair < keys.to; ++pair) {
    float* to = w.scratch.values + (pair - keys.from / 2) * width;
    const bool has_low = 2 * pair >= keys.from, has_high = 2 * pair + 1 < keys.to;
    const auto *low = row(2 * pair + !has_low), *high = row(2 * pair + has_high);
    for (int64_t d = 0; d < whole; d += kLanes) {
      const Reg both = L::load(low + d, high + d);
      Vec::store(to + d, has_low && has_high ? both : L::keep(both, has_low, has_high));
    }
    for (int64_t d = whole; d < pool.v_dim; ++d) {
      store_as(to + d, L::one(has_low ? low[d] : typename L::T{0}, has_high ? high[d] : typename L::T{0}));
    }
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

// What the panels of `keys` still hold from position `from` on.
inline AttentionAhead rest_of(const Walk& w, Range keys, int64_t from) {
  return {w.tile.table, w.tile.kv_head, w.base + from, w.base + keys.to};
}

// Scores of all rows with `keys`, and the scales of their values: a panel is converted once and read by all of them.
void staged_scores(const Walk& w, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const int64_t row_blocks = (w.tile.rows + kRowBlock - 1) / kRowBlock;
  decode_key_scales(w, keys);
  for (int64_t first = keys.from / kKeyPanel * kKeyPanel; first < keys.to; first += kKeyPanel) {
    const Range panel{at_least(first, keys.from), at_most(first + kKeyPanel, keys.to)};
    const bool last = panel.to == keys.to;
    PanelAhead next(pool, rest_of(w, keys, last ? keys.from : panel.to), last, row_blocks);
    with_loader(pool.k_dtype, paired_keys(pool), [&](auto loader) {
      using L = decltype(loader);
      stage_keys<L>(w, first, panel);
      panel_scores<typename L::Kind>(w, w.scratch.keys, kKeyPanel, first, panel, next);
    });
  }
  decode_value_scales(w, keys);
}

void staged_values(const Walk& w, Range keys, const AttentionAhead& ahead, const AttentionState& state) {
  const KvPool& pool = *w.tile.pool;
  const int64_t row_blocks = (w.tile.rows + kRowBlock - 1) / kRowBlock;
  for (int64_t first = keys.from / kKeyPanel * kKeyPanel; first < keys.to; first += kKeyPanel) {
    const Range panel{at_least(first, keys.from), at_most(first + kKeyPanel, keys.to)};
    const bool last = panel.to == keys.to;
    PanelAhead next(pool, last ? ahead : rest_of(w, keys, panel.to), !last, row_blocks);
    with_loader(pool.v_aliases_k ? pool.k_dtype : pool.v_dtype, paired_values(pool), [&](auto loader) {
      using L = decltype(loader);
      if constexpr (L::kStep == 2) {
        stage_value_pairs<L>(w, panel);
      } else {
        stage_values<L>(w, panel);
      }
      panel_values<typename L::Kind>(w, w.scratch.values, v_stride(pool.v_dim), panel, state, next);
    });
  }
}

void segment_staged(const Walk& w, Range keys, const AttentionAhead& ahead, const AttentionState& state) {
  staged_scores(w, keys);
  for (int64_t r = 0; r < w.tile.rows; ++r) {
    if (!w.row(r).empty()) softmax_rows(w, r, r + 1, w.row(r), state);
  }
  staged_values(w, keys, ahead, state);
}

}  // namespace
}  // namespace ridgeline
