// What the attention kernels share: a row's keys in a segment, the way through a block table, the scales of codes, the softmax of
// a row. On lanes of `Vec`; included once per instruction set, after its vec_*.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/attention.h"
#include "ops/half.h"
#include "ops/math_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kLanes = Vec::kLanes;
constexpr int kRowBlock = 6;
constexpr int kVectors = Vec::kScoreVectors;
// Where prefetches go: the first-level cache has too few misses in flight at a time to read memory at its speed.
constexpr int kSecondLevel = 2;

// How numbers of the cache become lanes, and how products of such lanes are added: all that are floats then alike.
struct Floats {
  using Kind = Floats;
  static constexpr int kStep = 1;
  static Reg mul_add(Reg a, Reg b, Reg c) { return Vec::fma(a, b, c); }
};

struct LoadF32 : Floats {
  using T = float;
  static Reg load(const T* p) { return Vec::load(p); }
  static float one(T x) { return x; }
};
struct LoadBf16 : Floats {
  using T = uint16_t;
  static Reg load(const T* p) { return Vec::load_bf16(p); }
  static float one(T x) { return bf16_to_float(x); }
};
struct LoadF16 : Floats {
  using T = uint16_t;
  static Reg load(const T* p) { return Vec::load_f16(p); }
  static float one(T x) { return f16_to_float(x); }
};

struct LoadInt8 : Floats {
  using T = int8_t;
  static Reg load(const T* p) { return Vec::load_i8(p); }
  static float one(T x) { return static_cast<float>(x); }
};
struct LoadInt4 : Floats {
  using T = uint8_t;
};

// Where the CPU multiplies two bfloat16 numbers a lane at once: keys two dimensions at a time, values two keys at a time. The other
// factor is rounded to bfloat16 too. A pair lies where else one float does, low half first. Codes of int8 are such numbers, exactly.
template <typename V, typename Number = uint16_t>
struct Bf16Pairs {
  using Kind = Bf16Pairs<V>;
  using T = Number;
  static constexpr int kStep = 2;
  static Reg mul_add(Reg a, Reg b, Reg c) { return V::dot_pairs(a, b, c); }
  static Reg load(const T* low, const T* high) { return V::pairs(low, high); }
  static Reg keep(Reg pairs, bool low, bool high) { return V::keep_bits(pairs, (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u)); }
  static uint32_t one(T low, T high) { return bits(low) | bits(high) << 16; }

 private:
  static uint32_t bits(uint16_t x) { return x; }
  static uint32_t bits(int8_t x) { return float_to_bf16(static_cast<float>(x)); }
};

// Which of a pool's numbers are read in pairs: a matter of the pool alone, so that a row's sums never depend on its company.
inline bool multiplied_in_pairs(KvDtype dtype) { return Vec::kPairs && (dtype == KvDtype::kBF16 || dtype == KvDtype::kInt8); }
inline bool paired_keys(const KvPool& pool) { return multiplied_in_pairs(pool.k_dtype) && pool.k_dim % 2 == 0; }
inline bool paired_values(const KvPool& pool) { return multiplied_in_pairs(pool.v_dtype) && !pool.v_aliases_k; }

// f(loader) for a dtype found at run time.
template <typename V = Vec, typename F>
inline void with_loader(KvDtype dtype, bool paired, const F& f) {
  if constexpr (V::kPairs) {
    if (paired) return dtype == KvDtype::kInt8 ? f(Bf16Pairs<V, int8_t>{}) : f(Bf16Pairs<V>{});
  }
  switch (dtype) {
    case KvDtype::kF32:
      return f(LoadF32{});
    case KvDtype::kBF16:
      return f(LoadBf16{});
    case KvDtype::kF16:
      return f(LoadF16{});
    case KvDtype::kInt8:
      return f(LoadInt8{});
    case KvDtype::kInt4:
      return f(LoadInt4{});
  }
}

// f(r, n) for a register block, with constants for numbers: a loop that the compiler keeps puts the block's sums into memory.
template <int R, int N, int I = 0, typename F>
__attribute__((always_inline)) inline void each_sum(const F& f) {
#if defined(__SANITIZE_ADDRESS__)  // instrumented, the compiler takes minutes for the other form
  for (int i = 0; i < R * N; ++i) f(i / N, i % N);
#else
  if constexpr (I < R * N) {
    f(I / N, I % N);
    each_sum<R, N, I + 1>(f);
  }
#endif
}

// f.run<R, N>() for sizes found at run time: at most kRowBlock rows, and kMost vectors or more.
template <int N, typename F>
inline void with_rows(int64_t rows, const F& f) {
  switch (rows) {
    case 1:
      return f.template run<1, N>();
    case 2:
      return f.template run<2, N>();
    case 3:
      return f.template run<3, N>();
    case 4:
      return f.template run<4, N>();
    case 5:
      return f.template run<5, N>();
    default:
      return f.template run<6, N>();
  }
}
template <int kMost, typename F>
inline void with_block(int64_t rows, int64_t vectors, const F& f) {
  if (vectors == 1) return with_rows<1>(rows, f);
  if constexpr (kMost > 2) {
    if (vectors == 2) return with_rows<2>(rows, f);
    if (vectors == 3) return with_rows<3>(rows, f);
  }
  with_rows<kMost>(rows, f);
}

inline int64_t at_least(int64_t x, int64_t low) { return x < low ? low : x; }
inline int64_t at_most(int64_t x, int64_t high) { return x < high ? x : high; }
inline int64_t lanes_down(int64_t x) { return x / kLanes * kLanes; }
inline int64_t lanes_up(int64_t x) { return (x + kLanes - 1) / kLanes * kLanes; }

// Keys [from, to) counted from the segment's start; empty where from >= to.
struct Range {
  int64_t from, to;
  bool empty() const { return from >= to; }
  bool operator==(const Range& o) const { return from == o.from && to == o.to; }
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

inline void store_as(float* p, uint32_t bits) { std::memcpy(p, &bits, sizeof bits); }

// The lanes of one step along a dimension or a key; what comes after it is `stride` numbers further.
template <typename L>
inline Reg load_step(const typename L::T* p, int64_t stride) {
  if constexpr (L::kStep == 2) {
    return L::load(p, p + stride);
  } else {
    return L::load(p);
  }
}

// The same for one lane.
template <typename L>
inline void store_step(float* to, const typename L::T* p, int64_t stride) {
  if constexpr (L::kStep == 2) {
    store_as(to, L::one(p[0], p[stride]));
  } else {
    *to = L::one(*p);
  }
}

template <typename T>
inline T read_as(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// f(slot, key, count) for each run of keys of the range that lie in one block.
template <typename F>
inline void each_run(const Walk& w, Range keys, const F& f) {
  for (int64_t key = keys.from; key < keys.to;) {
    const int64_t end = at_most(w.block_end(key), keys.to);
    f(w.slot(key), key, end - key);
    key = end;
  }
}

// The scales of keys [keys.from, keys.to) of the segment, as floats.
void decode_key_scales(const Walk& w, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const int64_t rows = kv_scales(pool.k_dtype, pool.k_dim);
  if (rows == 0) return;
  each_run(w, keys, [&](int64_t slot, int64_t key, int64_t count) {
    const uint8_t* from = pool.k_scales(w.block(key), w.tile.kv_head);
    for (int64_t row = 0; row < rows; ++row) {
      float* to = w.scratch.k_scales + row * kKeySegment + key;
      if (pool.k_dtype == KvDtype::kInt8) {
        std::memcpy(to, from + slot * 4, static_cast<size_t>(count) * 4);
        continue;
      }
      const uint8_t* halves = from + (row * pool.block_size + slot) * 2;
      if (count % kLanes == 0 && pool.block_size % kLanes == 0) {
        for (int64_t i = 0; i < count; i += kLanes) Vec::store(to + i, Vec::load_f16(reinterpret_cast<const uint16_t*>(halves) + i));
      } else {
        for (int64_t i = 0; i < count; ++i) to[i] = f16_to_float(read_as<uint16_t>(halves + 2 * i));
      }
    }
  });
}

// Those of the values. Values that are part of the key have none of their own.
void decode_value_scales(const Walk& w, Range keys) {
  const KvPool& pool = *w.tile.pool;
  const int64_t rows = kv_scales(pool.v_dtype, pool.v_dim);
  if (rows == 0 || pool.v_aliases_k) return;
  each_run(w, keys, [&](int64_t slot, int64_t key, int64_t count) {
    const uint8_t* from = pool.v_scales(w.block(key), w.tile.kv_head);
    float* to = w.scratch.v_scales + key * rows;
    if (pool.v_dtype == KvDtype::kInt8) {
      std::memcpy(to, from + slot * 4, static_cast<size_t>(count) * 4);
      return;
    }
    const uint8_t* halves = from + slot * rows * 2;
    int64_t i = 0;
    if (pool.block_size % kLanes == 0 && pool.v_dim % kKvGroup == 0) {
      for (; i + kLanes <= count * rows; i += kLanes) Vec::store(to + i, Vec::load_f16(reinterpret_cast<const uint16_t*>(halves) + i));
    }
    for (; i < count * rows; ++i) to[i] = f16_to_float(read_as<uint16_t>(halves + 2 * i));
  });
}

// What a row of scores is multiplied with before and after the softmax, by key of the segment, null for nothing; paired: probabilities
// are wanted as bfloat16.
struct RowScales {
  const float *scores, *probabilities;
  bool paired;
};

inline RowScales row_scales(const Walk& w) {
  const KvPool& pool = *w.tile.pool;
  const float* keys = pool.k_dtype == KvDtype::kInt8 ? w.scratch.k_scales : nullptr;
  return {keys, pool.v_aliases_k ? keys : pool.v_dtype == KvDtype::kInt8 ? w.scratch.v_scales : nullptr, paired_values(pool)};
}

// Turns a row's scores into exp(score - max), times the scale of the value, and its max and sum.
void softmax_row(float* scores, Range keys, const RowScales& scales, float cap, float* largest, float* sum) {
  const Reg none = constant(-__builtin_inff()), c = constant(cap), inverse = constant(cap == 0 ? 0.0f : 1.0f / cap);
  const int64_t begin = lanes_down(keys.from), end = lanes_up(keys.to);
  if (scales.scores != nullptr) {
    for (int64_t i = begin; i < end; i += kLanes) Vec::store(scores + i, Vec::mul(Vec::load(scores + i), Vec::load(scales.scores + i)));
  }
  if (cap != 0) {
    for (int64_t i = begin; i < end; i += kLanes) Vec::store(scores + i, softcap_lanes(Vec::load(scores + i), c, inverse));
  }
  // Lanes outside of the range hold anything: only the first and the last vector have some.
  const auto hide = [&](int64_t i) {
    Vec::store(scores + i, Vec::select(Vec::lanes(keys.from - i, keys.to - i), Vec::load(scores + i), none));
  };
  if (begin < keys.from) hide(begin);
  if (end > keys.to) hide(end - kLanes);
  Reg best = none;
  for (int64_t i = begin; i < end; i += kLanes) best = Vec::max(best, Vec::load(scores + i));
  const float top = Vec::largest(best);
  Reg total = Vec::zero();
  for (int64_t i = begin; i < end; i += kLanes) {
    const Reg p = exp_lanes(Vec::sub(Vec::load(scores + i), constant(top)));
    Reg weight = p;
    if (scales.probabilities != nullptr) {
      weight = Vec::mul(p, Vec::load(scales.probabilities + i));
      // A pair's other key is multiplied too, with zero, and beyond the range a scale may be anything.
      if (i < keys.from || i + kLanes > keys.to) {
        weight = Vec::select(Vec::lanes(keys.from - i, keys.to - i), weight, Vec::zero());
      }
    }
    if (scales.paired) {
      Vec::store_bf16(reinterpret_cast<uint16_t*>(scores) + i, weight);  // before what is still to be read
    } else {
      Vec::store(scores + i, weight);
    }
    total = Vec::add(total, p);
  }
  *largest = top;
  *sum = Vec::sum(total);
}

// Rows [r0, r1), which all see `keys`.
void softmax_rows(const Walk& w, int64_t r0, int64_t r1, Range keys, const AttentionState& state) {
  const int64_t width = v_stride(w.tile.pool->v_dim);
  const RowScales scales = row_scales(w);
  for (int64_t r = r0; r < r1; ++r) {
    softmax_row(w.scratch.scores + r * kKeySegment, keys, scales, w.tile.softcap, state.largest + r, state.sum + r);
    for (int64_t i = 0; i < width; i += kLanes) Vec::store(state.out + r * width + i, Vec::zero());
  }
}

}  // namespace
}  // namespace ridgeline
