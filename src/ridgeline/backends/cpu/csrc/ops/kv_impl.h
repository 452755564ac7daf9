// Writing keys and values, on lanes of `Vec`; included once per instruction set, after its vec_*.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/half.h"
#include "ops/kv.h"

namespace ridgeline {
namespace {

constexpr int64_t kStage = 64;

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
void write_token(const KvPool& pool, int64_t block, int64_t slot, const float* k, const float* v) {
  using T = typename S::T;
  T stage[kStage];
  for (int64_t head = 0; head < pool.kv_heads; ++head) {
    T* keys = reinterpret_cast<T*>(pool.k_head(block, head)) + slot;
    for (int64_t d = 0; d < pool.k_dim; d += kStage) {
      const int64_t n = pool.k_dim - d < kStage ? pool.k_dim - d : kStage;
      round_stage<S>(k + head * pool.k_dim + d, stage, n);
      for (int64_t i = 0; i < n; ++i) keys[(d + i) * pool.block_size] = stage[i];
    }
    if (pool.v_aliases_k) continue;
    T* values = reinterpret_cast<T*>(pool.v_head(block, head)) + slot * pool.v_dim;
    for (int64_t d = 0; d < pool.v_dim; d += kStage) {
      const int64_t n = pool.v_dim - d < kStage ? pool.v_dim - d : kStage;
      round_stage<S>(v + head * pool.v_dim + d, stage, n);
      std::memcpy(values + d, stage, static_cast<size_t>(n) * sizeof(T));
    }
  }
}

void write_kv(const KvPool& pool, int64_t block, int64_t slot, const float* k, const float* v) {
  switch (pool.dtype) {
    case KvDtype::kF32:
      return write_token<StoreF32>(pool, block, slot, k, v);
    case KvDtype::kBF16:
      return write_token<StoreBf16>(pool, block, slot, k, v);
    case KvDtype::kF16:
      return write_token<StoreF16>(pool, block, slot, k, v);
  }
}

}  // namespace
}  // namespace ridgeline
