// The attention kernels on lanes of `Vec`; included once per instruction set, after its vec_*.h. Few rows read the cache directly,
// many a converted panel of it: the same chain of sums for every element, in the same order.
#pragma once
#include "ops/attention_direct.h"
#include "ops/attention_staged.h"

namespace ridgeline {
namespace {

constexpr int64_t kDirectRows = 16;  // of one token: more rows pay for converting a panel first

// A segment whose first keys all rows read together, and whose others each token reads for itself: the chains of sums go over both.
void segment_parted(const Walk& w, const AttentionAhead& ahead, const AttentionState& state) {
  const AttentionTile& t = w.tile;
  const Range shared{0, t.common - w.base};
  const int64_t width = v_stride(t.pool->v_dim), tokens = t.rows / t.apart;
  // f(the token's own walk, its keys beyond the shared ones, where the next token's are, its state)
  const auto each_token = [&](const auto& f) {
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = i * t.apart;
      AttentionTile tile = t;
      tile.table = t.tables[i], tile.rows = t.apart, tile.q += row * t.pool->k_dim, tile.first += row, tile.last += row;
      AttentionScratch scratch = w.scratch;
      scratch.scores += row * kKeySegment;
      const Walk own{tile, scratch, w.base};
      const AttentionAhead next{i + 1 < tokens ? t.tables[i + 1] : nullptr, t.kv_head, t.common,
                                i + 1 < tokens ? t.last[row + t.apart] : 0};
      f(own, Range{shared.to, own.row(0).to}, next, AttentionState{state.largest + row, state.sum + row, state.out + row * width});
    }
  };
  staged_scores(w, shared);
  each_token([](const Walk& own, Range keys, const AttentionAhead& next, const AttentionState& mine) {
    const Chunks list = list_chunks(own, keys, next);
    direct_scores(direct_rows(own, 0, own.tile.rows, keys, list));
    softmax_rows(own, 0, own.tile.rows, {0, keys.to}, mine);
  });
  staged_values(w, shared, ahead, state);
  each_token([](const Walk& own, Range keys, const AttentionAhead& next, const AttentionState& mine) {
    const Chunks list = list_chunks(own, keys, next);
    if (own.tile.pool->v_dtype == KvDtype::kInt4) decode_value_scales(own, keys);
    direct_values(direct_rows(own, 0, own.tile.rows, keys, list), mine);
  });
}

void attend_segment(const AttentionTile& tile, int64_t s, const AttentionAhead& ahead, const AttentionScratch& scratch,
                    const AttentionState& state) {
  const Walk w{tile, scratch, s * tile.segment};
  const Range keys = w.any(0, tile.rows);
  if (keys.empty()) return;
  const KvPool& pool = *tile.pool;
  const int64_t lanes = pool.v_dtype == KvDtype::kInt4 ? kKvGroup : 16;
  const bool whole = pool.block_size % kLanes == 0 && pool.v_dim % lanes == 0 && tile.segment % kLanes == 0 && !pool.v_aliases_k;
  if (tile.common > w.base && tile.common < w.base + tile.segment) {
    segment_parted(w, ahead, state);
  } else if (whole && (tile.rows <= kRowBlock || (tile.rows <= kDirectRows && w.common(0, tile.rows) == keys))) {
    segment_direct(w, ahead, state);
  } else {
    segment_staged(w, keys, ahead, state);
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

// [k_dim] numbers, or half as many pairs.
void query_row(const KvPool& pool, const float* x, float factor, float* out) {
  if (!paired_keys(pool)) return scale_row(x, factor, out, pool.k_dim);
  const Reg f = constant(factor);
  auto* halves = reinterpret_cast<uint16_t*>(out);
  int64_t i = 0;
  for (; i + kLanes <= pool.k_dim; i += kLanes) Vec::store_bf16(halves + i, Vec::mul(Vec::load(x + i), f));
  if (i == pool.k_dim) return;
  uint16_t rest[kLanes];
  Vec::store_bf16(rest, Vec::mul(Vec::load_n(x + i, pool.k_dim - i), f));
  std::memcpy(halves + i, rest, static_cast<size_t>(pool.k_dim - i) * sizeof *rest);
}

AttentionKernels make_attention(const char* name) { return {attend_segment, merge_segment, finish_row, query_row, name}; }

}  // namespace
}  // namespace ridgeline
