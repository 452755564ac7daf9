// Paged storage of keys and values. Of each KV head a block holds its keys transposed, [k_dim, block_size], so that a SIMD lane
// is a key, and its values row by row, [block_size, v_dim]. Heads are outermost: a walk over the neighbouring blocks of one head
// is one stream, which the processor fetches ahead. Knows no sequence: the caller names block and slot.
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
  uint8_t* k;        // [kv_heads, blocks, k_dim, block_size]
  uint8_t* v;        // [kv_heads, blocks, block_size, v_dim]

  // Bytes of one head of a block.
  int64_t k_bytes() const { return k_dim * block_size * kv_element_bytes(dtype); }
  int64_t v_bytes() const { return v_aliases_k ? 0 : v_dim * block_size * kv_element_bytes(dtype); }
  // First byte of a head of a block.
  uint8_t* k_head(int64_t block, int64_t head) const { return k + (head * blocks + block) * k_bytes(); }
  uint8_t* v_head(int64_t block, int64_t head) const { return v + (head * blocks + block) * v_bytes(); }
};

struct KvKernels {
  // Store a token's k [kv_heads * k_dim] and v [kv_heads * v_dim] in a slot, rounded to nearest even.
  void (*write)(const KvPool& pool, int64_t block, int64_t slot, const float* k, const float* v);
  const char* name;
};

const KvKernels& kv_kernels(Isa isa);

void copy_kv_block(const KvPool& pool, int64_t src, int64_t dst);

}  // namespace ridgeline
