// Attention of the few rows of one token that share a KV head: keys and values are read from the cache once, converted on the way.
// A chunk is the keys of one vector; its keys and its values lie together, and are asked for some chunks before they are needed.
#pragma once
#include <type_traits>

#include "ops/attention_walk.h"

namespace ridgeline {
namespace {

constexpr int64_t kMostChunks = kKeySegment / kLanes;
constexpr int64_t kAhead = 64 / kLanes;  // chunks between asking and reading: 8 KiB of 64-dim bfloat16
constexpr int64_t kSpan = 64;            // keys whose values are read for one register block of rows after the other

// Chunks of keys, then of values, then the first ones of the next walk, in the order in which they are read.
struct Chunks {
  const uint8_t* keys[kMostChunks];                 // key chunk c, lane 0: the next row of the block is block_size numbers further
  const uint8_t* memory[2 * kMostChunks + kAhead];  // first byte of the chunk's own part of the cache
  int64_t first, count;                             // chunk numbers in the segment: first .. first + count
  const uint8_t* const* values() const { return memory + count; }
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

Chunks list_chunks(const Walk& w, Range keys, const AttentionAhead& ahead) {
  const KvPool& pool = *w.tile.pool;
  const int64_t k_row = pool.k_row(), v_row = pool.v_row(), number = pool.k_dtype == KvDtype::kInt4 ? 1 : k_row / pool.k_dim;
  Chunks list;
  list.first = keys.from / kLanes;
  list.count = (keys.to + kLanes - 1) / kLanes - list.first;
  ChunkCursor cursor(pool, w.tile.table, w.base + list.first * kLanes);
  for (int64_t c = 0; c < list.count; ++c, cursor.next()) {
    const uint8_t* k = pool.k_head(cursor.table[cursor.block], w.tile.kv_head);
    list.keys[c] = k + cursor.slot * number;
    list.memory[c] = k + cursor.slot * k_row;
    list.memory[list.count + c] = pool.v_head(cursor.table[cursor.block], w.tile.kv_head) + cursor.slot * v_row;
  }
  ChunkCursor after(pool, ahead.table, lanes_down(ahead.from));
  for (int64_t c = 2 * list.count; c < 2 * list.count + kAhead; ++c) {
    const int64_t key = lanes_down(ahead.from) + (c - 2 * list.count) * kLanes;
    list.memory[c] = list.memory[2 * list.count - 1];
    if (key >= ahead.to) continue;
    list.memory[c] = pool.k_head(after.table[after.block], ahead.kv_head) + after.slot * k_row;
    after.next();
  }
  return list;
}

struct ScoreStep {
  const float* q;  // [rows, k_dim], or half as many pairs a row
  int64_t k_dim;
  const uint8_t* const* keys;    // [N]
  const uint8_t* const* memory;  // [N], asked for meanwhile
  int64_t stride;                // block_size
  const float* scales;           // of int4: rows of kKeySegment, from the first key of the first chunk
  float* scores;                 // [rows, kKeySegment]
};

template <typename L, int R, int N>
void score_block(const ScoreStep& step) {
  Reg sums[R][N];
  each_sum<R, N>([&](int r, int n) { sums[r][n] = Vec::zero(); });
  const typename L::T *keys[N], *memory[N];
  for (int n = 0; n < N; ++n) {
    keys[n] = reinterpret_cast<const typename L::T*>(step.keys[n]);
    memory[n] = reinterpret_cast<const typename L::T*>(step.memory[n]);
  }
  const float* q = step.q;
  const int64_t k_dim = step.k_dim, stride = step.stride;
  const auto add = [&](int64_t d) {
    Reg columns[N];
    for (int n = 0; n < N; ++n) columns[n] = load_step<L>(keys[n] + d * stride, stride);
    for (int r = 0; r < R; ++r) {
      const Reg factor = Vec::set1(q[r * k_dim + d / L::kStep]);
      for (int n = 0; n < N; ++n) sums[r][n] = L::mul_add(factor, columns[n], sums[r][n]);
    }
  };
  // As many dimensions as a line of the chunks to come has numbers for.
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(typename L::T)) / kLanes, kTogether = kLine > 1 ? kLine : 1;
  static_assert(kTogether % L::kStep == 0);
  int64_t d = 0;
  for (; d + kTogether <= k_dim; d += kTogether) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(memory[n] + d * kLanes, 0, kSecondLevel);
    for (int64_t i = 0; i < kTogether; i += L::kStep) add(d + i);
  }
  for (; d < k_dim; d += L::kStep) add(d);
  each_sum<R, N>([&](int r, int n) { Vec::store(step.scores + r * kKeySegment + n * kLanes, sums[r][n]); });
}

// The same where a dimension is half a byte: numbers are made of codes with the step and the least of their group.
template <int R, int N>
void score_block4(const ScoreStep& step) {
  Reg sums[R][N];
  each_sum<R, N>([&](int r, int n) { sums[r][n] = Vec::zero(); });
  const int64_t k_dim = step.k_dim;
  for (int64_t d = 0; d < k_dim;) {
    const KvNibble at = kv_nibble(d, k_dim);
    const int64_t group = d / kKvGroup, first = group * kKvGroup, size = at_most(k_dim - first, kKvGroup), half = (size + 1) / 2;
    const int64_t end = d - first < half ? first + half : first + size;
    Reg steps[N], least[N];
    for (int n = 0; n < N; ++n) {
      steps[n] = Vec::load(step.scales + 2 * group * kKeySegment + n * kLanes);
      least[n] = Vec::load(step.scales + (2 * group + 1) * kKeySegment + n * kLanes);
    }
    for (int64_t byte = at.byte; d < end; ++d, ++byte) {
      Reg columns[N];
      for (int n = 0; n < N; ++n) {
        __builtin_prefetch(step.memory[n] + d * kLanes / 2, 0, kSecondLevel);
        columns[n] = Vec::fma(Vec::load_u4(step.keys[n] + byte * step.stride, at.shift), steps[n], least[n]);
      }
      for (int r = 0; r < R; ++r) {
        const Reg factor = Vec::set1(step.q[r * k_dim + d]);
        for (int n = 0; n < N; ++n) sums[r][n] = Vec::fma(factor, columns[n], sums[r][n]);
      }
    }
  }
  each_sum<R, N>([&](int r, int n) { Vec::store(step.scores + r * kKeySegment + n * kLanes, sums[r][n]); });
}

struct ValueStep {
  const float* p;                // [rows, kKeySegment], from the segment's first key, or its first pair of keys
  const uint8_t* const* chunks;  // from chunk `first` of the segment on
  int64_t first;
  int64_t stride, column;  // v_dim, first dimension
  const float* scales;     // of int4: [kKeySegment, 2 * groups]
  Range keys;
  float* out;
  int64_t width;
};

template <typename L, int R, int N>
void value_block(const ValueStep& step) {
  using T = typename L::T;
  constexpr int kLine = 64 / static_cast<int>(sizeof(T));
  Reg sums[R][N];
  each_sum<R, N>([&](int r, int n) { sums[r][n] = Vec::load(step.out + r * step.width + n * kLanes); });
  const int64_t stride = step.stride, last = step.keys.to;
  const float* p = step.p;
  for (int64_t key = step.keys.from / L::kStep * L::kStep; key < last;) {
    const int64_t chunk = key / kLanes - step.first, begin = (key % kLanes) * stride + step.column,
                  end = at_most(lanes_down(key) + kLanes, last);
    const T* v = reinterpret_cast<const T*>(step.chunks[chunk]) + begin;
    const T* memory = reinterpret_cast<const T*>(step.chunks[chunk + kAhead]) + begin;
    for (; key < end; key += L::kStep, v += L::kStep * stride, memory += L::kStep * stride) {
      for (int i = 0; i < N * static_cast<int>(kLanes); i += kLine) {
        for (int k = 0; k < L::kStep; ++k) __builtin_prefetch(memory + k * stride + i, 0, kSecondLevel);
      }
      Reg columns[N];
      for (int n = 0; n < N; ++n) columns[n] = load_step<L>(v + n * kLanes, stride);
      if constexpr (L::kStep == 2) {
        const bool low = key >= step.keys.from, high = key + 1 < last;
        if (!low || !high) {
          for (int n = 0; n < N; ++n) columns[n] = L::keep(columns[n], low, high);
        }
      }
      for (int r = 0; r < R; ++r) {
        const Reg factor = Vec::set1(p[r * kKeySegment + key / L::kStep]);
        for (int n = 0; n < N; ++n) sums[r][n] = L::mul_add(factor, columns[n], sums[r][n]);
      }
    }
  }
  each_sum<R, N>([&](int r, int n) { Vec::store(step.out + r * step.width + n * kLanes, sums[r][n]); });
}

// v_dim is a multiple of the group, so a vector lies within the low or the high halves of one group.
template <int R, int N>
void value_block4(const ValueStep& step) {
  Reg sums[R][N];
  each_sum<R, N>([&](int r, int n) { sums[r][n] = Vec::load(step.out + r * step.width + n * kLanes); });
  const int64_t row = step.stride / 2, scales = step.stride / kKvGroup * 2;
  int64_t bytes[N], groups[N];
  int shifts[N];
  for (int n = 0; n < N; ++n) {
    const KvNibble at = kv_nibble(step.column + n * kLanes, step.stride);
    bytes[n] = at.byte, shifts[n] = at.shift, groups[n] = (step.column + n * kLanes) / kKvGroup * 2;
  }
  for (int64_t key = step.keys.from; key < step.keys.to; ++key) {
    const int64_t chunk = key / kLanes - step.first, at = (key % kLanes) * row;
    const uint8_t* v = step.chunks[chunk] + at;
    const float* scale = step.scales + key * scales;
    __builtin_prefetch(step.chunks[chunk + kAhead] + at + bytes[0], 0, kSecondLevel);
    Reg columns[N];
    for (int n = 0; n < N; ++n) {
      columns[n] = Vec::fma(Vec::load_u4(v + bytes[n], shifts[n]), Vec::set1(scale[groups[n]]), Vec::set1(scale[groups[n] + 1]));
    }
    for (int r = 0; r < R; ++r) {
      const Reg factor = Vec::set1(step.p[r * kKeySegment + key]);
      for (int n = 0; n < N; ++n) sums[r][n] = Vec::fma(factor, columns[n], sums[r][n]);
    }
  }
  each_sum<R, N>([&](int r, int n) { Vec::store(step.out + r * step.width + n * kLanes, sums[r][n]); });
}

template <typename L>
struct RunScores {
  const ScoreStep& step;
  template <int R, int N>
  void run() const {
    if constexpr (std::is_same_v<L, LoadInt4>) {
      score_block4<R, N>(step);
    } else {
      score_block<L, R, N>(step);
    }
  }
};
template <typename L>
struct RunValues {
  const ValueStep& step;
  template <int R, int N>
  void run() const {
    if constexpr (std::is_same_v<L, LoadInt4>) {
      value_block4<R, N>(step);
    } else {
      value_block<L, R, N>(step);
    }
  }
};

// Vectors of a register block of `rows` rows: its sums and one vector each must fit the registers.
inline int64_t block_vectors(int64_t rows) { return rows <= 3 ? 4 : kVectors; }

// Rows that all see `keys`, in register blocks of `size` rows and `vectors` vectors.
struct DirectRows {
  const Walk& w;
  int64_t row, rows;
  Range keys;
  const Chunks& list;
  int64_t size, vectors;

  float* scores() const { return w.scratch.scores + row * kKeySegment; }

  template <typename L>
  void score() const {
    const KvPool& pool = *w.tile.pool;
    for (int64_t c = 0; c < list.count; c += vectors) {
      const int64_t now = at_most(vectors, list.count - c), key = (list.first + c) * kLanes;
      for (int64_t r = 0; r < rows; r += size) {
        const float* q = w.tile.q + (row + r) * pool.k_dim;
        const ScoreStep step{q,
                             pool.k_dim,
                             list.keys + c,
                             list.memory + c + kAhead,
                             pool.block_size,
                             w.scratch.k_scales + key,
                             scores() + r * kKeySegment + key};
        with_block<4>(at_most(size, rows - r), now, RunScores<L>{step});
      }
    }
  }

  template <typename L>
  void add_values(const AttentionState& state) const {
    const int64_t v_dim = w.tile.pool->v_dim, width = v_stride(v_dim);
    for (int64_t from = keys.from; from < keys.to; from = (from / kSpan + 1) * kSpan) {
      const Range part{from, at_most((from / kSpan + 1) * kSpan, keys.to)};
      for (int64_t d = 0; d < width; d += vectors * kLanes) {
        const int64_t now = at_most(vectors, (width - d) / kLanes);
        for (int64_t r = 0; r < rows; r += size) {
          float* out = state.out + (row + r) * width + d;
          const ValueStep step{scores() + r * kKeySegment, list.values(), list.first, v_dim, d, w.scratch.v_scales, part, out, width};
          with_block<4>(at_most(size, rows - r), now, RunValues<L>{step});
        }
      }
    }
  }
};

DirectRows direct_rows(const Walk& w, int64_t row, int64_t rows, Range keys, const Chunks& list) {
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock, size = (rows + blocks - 1) / blocks;
  return {w, row, rows, keys, list, size, block_vectors(size)};
}

void direct_scores(const DirectRows& direct) {
  const KvPool& pool = *direct.w.tile.pool;
  decode_key_scales(direct.w, direct.keys);
  with_loader(pool.k_dtype, paired_keys(pool), [&](auto loader) { direct.template score<decltype(loader)>(); });
  decode_value_scales(direct.w, direct.keys);
}

void direct_values(const DirectRows& direct, const AttentionState& state) {
  const KvPool& pool = *direct.w.tile.pool;
  with_loader(pool.v_dtype, paired_values(pool), [&](auto loader) { direct.template add_values<decltype(loader)>(state); });
}

void segment_direct(const Walk& w, const AttentionAhead& ahead, const AttentionState& state) {
  for (int64_t r = 0; r < w.tile.rows;) {
    const Range keys = w.row(r);
    int64_t end = r + 1;
    while (end < w.tile.rows && w.row(end) == keys) ++end;
    if (!keys.empty()) {
      const Chunks list = list_chunks(w, keys, ahead);
      const DirectRows direct = direct_rows(w, r, end - r, keys, list);
      direct_scores(direct);
      softmax_rows(w, r, end, keys, state);
      direct_values(direct, state);
    }
    r = end;
  }
}

}  // namespace
}  // namespace ridgeline
