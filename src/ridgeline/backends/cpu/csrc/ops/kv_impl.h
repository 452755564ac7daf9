// Writing keys and values, on lanes of `Vec`; included once per instruction set, after its vec_*.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/half.h"
#include "ops/kv.h"

namespace ridgeline {
namespace {

constexpr int64_t kStage = 64;
constexpr float kLeastSize = 0x1p-100f;  // rows of int8 whose numbers are all smaller are zeros: their scale would be denormal
constexpr float kMostHalf = 65504.0f;

struct StoreF32 {
  using T = float;
  static void store(T* p, Vec::Reg a) { Vec::store(p, a); }
};
struct StoreBf16 {
  using T = uint16_t;
  static void store(T* p, Vec::Reg a) { Vec::store_bf16(p, a); }
};
struct StoreF16 {
  using T = uint16_t;
  static void store(T* p, Vec::Reg a) { Vec::store_f16(p, a); }
};

// Rounds x[0, n), n <= kStage, into out, which has room for kStage numbers.
template <typename S>
inline void round_stage(const float* x, typename S::T* out, int64_t n) {
  for (int64_t i = 0; i < n; i += Vec::kLanes) S::store(out + i, Vec::load_n(x + i, n - i));
}

template <typename S>
void write_float_keys(const KvPool& pool, uint8_t* head, int64_t slot, const float* x) {
  using T = typename S::T;
  T stage[kStage], *keys = reinterpret_cast<T*>(head) + slot;
  for (int64_t d = 0; d < pool.k_dim; d += kStage) {
    const int64_t n = pool.k_dim - d < kStage ? pool.k_dim - d : kStage;
    round_stage<S>(x + d, stage, n);
    for (int64_t i = 0; i < n; ++i) keys[(d + i) * pool.block_size] = stage[i];
  }
}

template <typename S>
void write_float_values(const KvPool& pool, uint8_t* head, int64_t slot, const float* x) {
  using T = typename S::T;
  T stage[kStage], *values = reinterpret_cast<T*>(head) + slot * pool.v_dim;
  for (int64_t d = 0; d < pool.v_dim; d += kStage) {
    const int64_t n = pool.v_dim - d < kStage ? pool.v_dim - d : kStage;
    round_stage<S>(x + d, stage, n);
    std::memcpy(values + d, stage, static_cast<size_t>(n) * sizeof(T));
  }
}

// Rounds (x[0, n) - least) * factor to whole numbers in low..high; bytes [0, n) of out, which has room for a multiple of the lanes.
inline void code_row(const float* x, int64_t n, float least, float factor, float low, float high, int8_t* out) {
  const Vec::Reg zero = Vec::set1(least), f = Vec::set1(factor), bottom = Vec::set1(low), top = Vec::set1(high);
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    float lanes[Vec::kLanes];
    Vec::store(lanes, Vec::min(top, Vec::max(bottom, Vec::round(Vec::mul(Vec::sub(Vec::load_n(x + i, n - i), zero), f)))));
    for (int64_t k = 0; k < Vec::kLanes; ++k) out[i + k] = static_cast<int8_t>(lanes[k]);
  }
}

// Not 0 where some number of x[0, n) is NaN or infinite.
inline bool all_finite(const float* x, int64_t n) {
  Vec::Reg sum = Vec::zero();
  for (int64_t i = 0; i < n; i += Vec::kLanes) sum = Vec::fma(Vec::load_n(x + i, n - i), Vec::zero(), sum);
  return Vec::sum(sum) == 0.0f;
}

inline float largest_size(const float* x, int64_t n) {
  Vec::Reg most = Vec::zero();
  for (int64_t i = 0; i < n; i += Vec::kLanes) most = Vec::max(most, Vec::abs(Vec::load_n(x + i, n - i)));
  return Vec::largest(most);
}

// Codes of one row in stages; put(d, codes, n) takes codes of numbers [d, d + n). The scale is returned.
template <typename Put>
float write_int8(const float* x, int64_t dim, const Put& put) {
  const bool finite = all_finite(x, dim);
  const float size = finite ? largest_size(x, dim) : 0.0f, factor = size < kLeastSize ? 0.0f : 127.0f / size;
  int8_t codes[kStage] = {};
  for (int64_t d = 0; d < dim; d += kStage) {
    const int64_t n = dim - d < kStage ? dim - d : kStage;
    if (finite) code_row(x + d, n, 0.0f, factor, -127.0f, 127.0f, codes);
    put(d, codes, n);
  }
  return !finite ? __builtin_nanf("") : size < kLeastSize ? 0.0f : size / 127.0f;
}

struct Int4Scale {
  uint16_t step, least;  // halves
};

// One group: bytes [0, (n + 1) / 2) of out.
inline Int4Scale code_group(const float* x, int64_t n, uint8_t* out) {
  const int64_t half = (n + 1) / 2;
  std::memset(out, 0, static_cast<size_t>(half));
  if (!all_finite(x, n)) return {0x7e00, 0x7e00};
  const Vec::Reg first = Vec::set1(x[0]);
  Vec::Reg low = first, high = first;
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const Vec::Reg lanes = Vec::select(Vec::lanes(0, n - i), Vec::load_n(x + i, n - i), first);
    low = Vec::min(low, lanes);
    high = Vec::max(high, lanes);
  }
  const float most = Vec::largest(high), least = -Vec::largest(Vec::sub(Vec::zero(), low));
  const float step = (most - least) / 15.0f, bounded = least < -kMostHalf ? -kMostHalf : least > kMostHalf ? kMostHalf : least;
  const Int4Scale scale{float_to_f16(step > kMostHalf ? kMostHalf : step), float_to_f16(bounded)};
  const float rounded = f16_to_float(scale.step);
  int8_t codes[kKvGroup];
  code_row(x, n, f16_to_float(scale.least), rounded > 0.0f ? 1.0f / rounded : 0.0f, 0.0f, 15.0f, codes);
  for (int64_t i = 0; i < half; ++i) out[i] = static_cast<uint8_t>(codes[i] | (i + half < n ? codes[i + half] << 4 : 0));
  return scale;
}

// put(group, bytes, count, scale) takes the groups of one row.
template <typename Put>
void write_int4(const float* x, int64_t dim, const Put& put) {
  for (int64_t group = 0; group * kKvGroup < dim; ++group) {
    const int64_t first = group * kKvGroup, n = dim - first < kKvGroup ? dim - first : kKvGroup;
    uint8_t bytes[kKvGroup / 2];
    const Int4Scale scale = code_group(x + first, n, bytes);
    put(group, bytes, (n + 1) / 2, scale);
  }
}

void write_keys(const KvPool& pool, int64_t block, int64_t head, int64_t slot, const float* x) {
  uint8_t *keys = pool.k_head(block, head), *scales = pool.k_scales(block, head);
  const int64_t size = pool.block_size;
  switch (pool.k_dtype) {
    case KvDtype::kF32:
      return write_float_keys<StoreF32>(pool, keys, slot, x);
    case KvDtype::kBF16:
      return write_float_keys<StoreBf16>(pool, keys, slot, x);
    case KvDtype::kF16:
      return write_float_keys<StoreF16>(pool, keys, slot, x);
    case KvDtype::kInt8: {
      const float scale = write_int8(x, pool.k_dim, [&](int64_t d, const int8_t* codes, int64_t n) {
        for (int64_t i = 0; i < n; ++i) keys[(d + i) * size + slot] = static_cast<uint8_t>(codes[i]);
      });
      std::memcpy(scales + slot * 4, &scale, sizeof scale);
      return;
    }
    case KvDtype::kInt4:
      return write_int4(x, pool.k_dim, [&](int64_t group, const uint8_t* bytes, int64_t n, Int4Scale scale) {
        for (int64_t i = 0; i < n; ++i) keys[(group * kKvGroup / 2 + i) * size + slot] = bytes[i];
        std::memcpy(scales + (2 * group * size + slot) * 2, &scale.step, 2);
        std::memcpy(scales + ((2 * group + 1) * size + slot) * 2, &scale.least, 2);
      });
  }
}

void write_values(const KvPool& pool, int64_t block, int64_t head, int64_t slot, const float* x) {
  uint8_t *values = pool.v_head(block, head), *scales = pool.v_scales(block, head), *row = values + slot * pool.v_row();
  switch (pool.v_dtype) {
    case KvDtype::kF32:
      return write_float_values<StoreF32>(pool, values, slot, x);
    case KvDtype::kBF16:
      return write_float_values<StoreBf16>(pool, values, slot, x);
    case KvDtype::kF16:
      return write_float_values<StoreF16>(pool, values, slot, x);
    case KvDtype::kInt8: {
      const float scale = write_int8(
          x, pool.v_dim, [&](int64_t d, const int8_t* codes, int64_t n) { std::memcpy(row + d, codes, static_cast<size_t>(n)); });
      std::memcpy(scales + slot * 4, &scale, sizeof scale);
      return;
    }
    case KvDtype::kInt4:
      return write_int4(x, pool.v_dim, [&](int64_t group, const uint8_t* bytes, int64_t n, Int4Scale scale) {
        std::memcpy(row + group * kKvGroup / 2, bytes, static_cast<size_t>(n));
        std::memcpy(scales + (slot * kv_groups(pool.v_dim) + group) * 4, &scale, sizeof scale);
      });
  }
}

void write_kv(const KvPool& pool, int64_t block, int64_t slot, const float* k, const float* v) {
  for (int64_t head = 0; head < pool.kv_heads; ++head) {
    write_keys(pool, block, head, slot, k + head * pool.k_dim);
    if (!pool.v_aliases_k) write_values(pool, block, head, slot, v + head * pool.v_dim);
  }
}

}  // namespace
}  // namespace ridgeline
