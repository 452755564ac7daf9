// Attention of the few rows of one token that share a KV head: keys and values are read from the cache once, converted on the way.
// A chunk is the keys of one vector; its keys and its values lie together, and are asked for some chunks before they are needed.
#pragma once
#include "ops/attention_walk.h"

namespace ridgeline {
namespace {

constexpr int64_t kMostChunks = kKeySegment / kLanes;
constexpr int64_t kAhead = 64 / kLanes;  // chunks between asking and reading: 8 KiB of 64-dim bfloat16

// Chunks of keys, then of values, then the first ones of the next walk, in the order in which they are read.
template <typename T>
struct Chunks {
  const T* keys[kMostChunks];                 // key chunk c, lane 0: dimension d is block_size * d further
  const T* memory[2 * kMostChunks + kAhead];  // first byte of the chunk's own part of the cache
  int64_t first, count;                       // chunk numbers in the segment: first .. first + count
  const T* const* values() const { return memory + count; }
};

// Cursor over the chunks of a block table.
struct ChunkCursor {
  const KvPool& pool;
  const int32_t* table;
  int64_t block, slot;
  ChunkCursor(const KvPool& p, const int32_t* t, int64_t position)
      : pool(p), table(t), block(position / p.block_size), slot(position % p.block_size) {}
  void next() {
    slot += kLanes;
    if (slot < pool.block_size) return;
    slot = 0;
    ++block;
  }
};

template <typename T>
Chunks<T> list_chunks(const Walk& w, Range keys, const AttentionAhead& ahead) {
  const KvPool& pool = *w.tile.pool;
  Chunks<T> list;
  list.first = keys.from / kLanes;
  list.count = (keys.to + kLanes - 1) / kLanes - list.first;
  ChunkCursor cursor(pool, w.tile.table, w.base + list.first * kLanes);
  for (int64_t c = 0; c < list.count; ++c, cursor.next()) {
    const T* k = reinterpret_cast<const T*>(pool.k_head(cursor.table[cursor.block], w.tile.kv_head));
    const T* v = reinterpret_cast<const T*>(pool.v_head(cursor.table[cursor.block], w.tile.kv_head));
    list.keys[c] = k + cursor.slot;
    list.memory[c] = k + cursor.slot * pool.k_dim;
    list.memory[list.count + c] = v + cursor.slot * pool.v_dim;
  }
  ChunkCursor after(pool, ahead.table, lanes_down(ahead.from));
  for (int64_t c = 2 * list.count; c < 2 * list.count + kAhead; ++c) {
    const int64_t key = lanes_down(ahead.from) + (c - 2 * list.count) * kLanes;
    list.memory[c] = list.memory[2 * list.count - 1];
    if (key >= ahead.to) continue;
    list.memory[c] = reinterpret_cast<const T*>(pool.k_head(after.table[after.block], ahead.kv_head)) + after.slot * pool.k_dim;
    after.next();
  }
  return list;
}

template <typename T>
struct ScoreStep {
  const float* q;  // [rows, k_dim]
  int64_t k_dim;
  const T* const* keys;    // [N]
  const T* const* memory;  // [N], asked for meanwhile
  int64_t stride;
  float* scores;  // [rows, kKeySegment]
};

template <typename L, int R, int N>
void score_block(const ScoreStep<typename L::T>& step) {
  Reg sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n] = Vec::zero();
  }
  const typename L::T *keys[N], *memory[N];
  for (int n = 0; n < N; ++n) keys[n] = step.keys[n], memory[n] = step.memory[n];
  const float* q = step.q;
  const int64_t k_dim = step.k_dim, stride = step.stride;
  for (int64_t d = 0; d < k_dim; ++d) {
    Reg columns[N];
    for (int n = 0; n < N; ++n) {
      __builtin_prefetch(memory[n] + d * kLanes);
      columns[n] = L::load(keys[n] + d * stride);
    }
    for (int r = 0; r < R; ++r) {
      const Reg factor = Vec::set1(q[r * k_dim + d]);
      for (int n = 0; n < N; ++n) sums[r][n] = Vec::fma(factor, columns[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) Vec::store(step.scores + r * kKeySegment + n * kLanes, sums[r][n]);
  }
}

template <typename T>
struct ValueStep {
  const float* p;          // [rows, kKeySegment], from the segment's first key
  const T* const* chunks;  // from chunk `first` of the segment on
  int64_t first;
  int64_t stride, column;  // v_dim, first dimension
  Range keys;
  float* out;
  int64_t width;
};

template <typename L, int R, int N>
void value_block(const ValueStep<typename L::T>& step) {
  constexpr int kLine = 64 / static_cast<int>(sizeof(typename L::T));
  Reg sums[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n] = Vec::load(step.out + r * step.width + n * kLanes);
  }
  const int64_t stride = step.stride, last = step.keys.to;
  const float* p = step.p;
  for (int64_t key = step.keys.from; key < last;) {
    const int64_t chunk = key / kLanes - step.first, begin = (key % kLanes) * stride + step.column,
                  end = at_most(lanes_down(key) + kLanes, last);
    const auto* v = step.chunks[chunk] + begin;
    const auto* memory = step.chunks[chunk + kAhead] + begin;
    for (; key < end; ++key, v += stride, memory += stride) {
      for (int i = 0; i < N * static_cast<int>(kLanes); i += kLine) __builtin_prefetch(memory + i);
      Reg columns[N];
      for (int n = 0; n < N; ++n) columns[n] = L::load(v + n * kLanes);
      for (int r = 0; r < R; ++r) {
        const Reg factor = Vec::set1(p[r * kKeySegment + key]);
        for (int n = 0; n < N; ++n) sums[r][n] = Vec::fma(factor, columns[n], sums[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) Vec::store(step.out + r * step.width + n * kLanes, sums[r][n]);
  }
}

template <typename L>
struct RunScores {
  const ScoreStep<typename L::T>& step;
  template <int R, int N>
  void run() const {
    score_block<L, R, N>(step);
  }
};
template <typename L>
struct RunValues {
  const ValueStep<typename L::T>& step;
  template <int R, int N>
  void run() const {
    value_block<L, R, N>(step);
  }
};

// Vectors of a register block of `rows` rows: its sums and one vector each must fit the registers.
inline int64_t block_vectors(int64_t rows) { return rows <= 3 ? 4 : kVectors; }

// Rows [row, row + rows), which all see `keys`.
template <typename L>
void direct_rows(const Walk& w, int64_t row, int64_t rows, Range keys, const AttentionAhead& ahead, const AttentionState& state) {
  using T = typename L::T;
  const KvPool& pool = *w.tile.pool;
  const Chunks<T> list = list_chunks<T>(w, keys, ahead);
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock, size = (rows + blocks - 1) / blocks, vectors = block_vectors(size);
  float* scores = w.scratch.scores + row * kKeySegment;
  for (int64_t c = 0; c < list.count; c += vectors) {
    const int64_t now = at_most(vectors, list.count - c);
    for (int64_t r = 0; r < rows; r += size) {
      const ScoreStep<T> step{w.tile.q + (row + r) * pool.k_dim, pool.k_dim,      list.keys + c,
                              list.memory + c + kAhead,          pool.block_size, scores + r * kKeySegment + (list.first + c) * kLanes};
      with_block<4>(at_most(size, rows - r), now, RunScores<L>{step});
    }
  }
  softmax_rows(w, row, row + rows, keys, state);
  const int64_t width = v_stride(pool.v_dim), span = kAhead * kLanes;
  for (int64_t from = keys.from; from < keys.to; from = (from / span + 1) * span) {
    const Range part{from, at_most((from / span + 1) * span, keys.to)};
    for (int64_t d = 0; d < width; d += vectors * kLanes) {
      const int64_t now = at_most(vectors, (width - d) / kLanes);
      for (int64_t r = 0; r < rows; r += size) {
        const ValueStep<T> step{scores + r * kKeySegment,          list.values(), list.first, pool.v_dim, d, part,
                                state.out + (row + r) * width + d, width};
        with_block<4>(at_most(size, rows - r), now, RunValues<L>{step});
      }
    }
  }
}

template <typename L>
void segment_direct(const Walk& w, const AttentionAhead& ahead, const AttentionState& state) {
  for (int64_t r = 0; r < w.tile.rows;) {
    const Range keys = w.row(r);
    int64_t end = r + 1;
    while (end < w.tile.rows && w.row(end) == keys) ++end;
    if (!keys.empty()) direct_rows<L>(w, r, end - r, keys, ahead, state);
    r = end;
  }
}

}  // namespace
}  // namespace ridgeline
