// Paged storage of keys and values. A block holds, for each KV head, its keys transposed, [k_dim, block_size], so that a SIMD
// lane is a key, and its values row by row, [block_size, v_dim]. Knows no sequence: the caller names block and slot.
#pragma once
#include <cstdint>

#include "isa/isa.h"

namespace ridgeline {

enum class KvDtype : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

constexpr int64_t kv_element_bytes(KvDtype dtype) { return dtype == KvDtype::kF32 ? 4 : 2; }

struct KvPool {
  KvDtype dtype;
  int64_t blocks, kv_heads, k_dim, v_dim, block_size;
  bool v_aliases_k;  // the values are the first v_dim numbers of the key; `v` is null
  uint8_t* k;        // [blocks, kv_heads, k_dim, block_size]
  uint8_t* v;        // [blocks, kv_heads, block_size, v_dim]

  int64_t k_block_bytes() const { return kv_heads * k_dim * block_size * kv_element_bytes(dtype); }
  int64_t v_block_bytes() const { return v_aliases_k ? 0 : kv_heads * v_dim * block_size * kv_element_bytes(dtype); }
  // First element of a head of a block.
  const uint8_t* k_head(int64_t block, int64_t head) const { return k + (block * kv_heads + head) * k_dim * block_size * kv_element_bytes(dtype); }
  const uint8_t* v_head(int64_t block, int64_t head) const { return v + (block * kv_heads + head) * v_dim * block_size * kv_element_bytes(dtype); }
};

struct KvKernels {
  // Store a token's k [kv_heads * k_dim] and v [kv_heads * v_dim] in a slot, rounded to nearest even.
  void (*write)(const KvPool& pool, int64_t block, int64_t slot, const float* k, const float* v);
  const char* name;
};

const KvKernels& kv_kernels(Isa isa);

void copy_kv_block(const KvPool& pool, int64_t src, int64_t dst);

}  // namespace ridgeline
