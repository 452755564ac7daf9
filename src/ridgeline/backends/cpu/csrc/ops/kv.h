// Paged storage of keys and values. Of each KV head a block holds its keys transposed, [k_dim, block_size], so that a SIMD lane
// is a key, and its values row by row, [block_size, v_dim]. Heads are outermost: a walk over the neighbouring blocks of one head
// is one stream, which the processor fetches ahead. Knows no sequence: the caller names block and slot.
//
// int8: number = code * scale, one float scale per token and head; the scales follow a block's codes, [block_size].
// int4: number = fma(code, step, least), code 0..15, in groups of 32 along the head dimension (the last may be shorter); step and
// least are halves and follow a block's codes: keys [groups, 2, block_size], values [block_size, groups, 2]. Of a group of n numbers
// byte j holds number j in its low half and number j + (n + 1) / 2 in its high half.
#pragma once
#include <cstdint>

#include "isa/isa.h"

namespace ridgeline {

enum class KvDtype : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2, kInt8 = 3, kInt4 = 4 };

constexpr int64_t kKvGroup = 32;

constexpr int64_t kv_groups(int64_t dim) { return (dim + kKvGroup - 1) / kKvGroup; }
// Bytes of the numbers of a token and head without their scales.
constexpr int64_t kv_code_bytes(KvDtype dtype, int64_t dim) {
  return dtype == KvDtype::kF32 ? 4 * dim : dtype == KvDtype::kInt8 ? dim : dtype == KvDtype::kInt4 ? (dim + 1) / 2 : 2 * dim;
}
constexpr int64_t kv_scale_bytes(KvDtype dtype, int64_t dim) {
  return dtype == KvDtype::kInt8 ? 4 : dtype == KvDtype::kInt4 ? 4 * kv_groups(dim) : 0;
}
// Floats that the scales of a token and head come to.
constexpr int64_t kv_scales(KvDtype dtype, int64_t dim) {
  return dtype == KvDtype::kInt8 ? 1 : dtype == KvDtype::kInt4 ? 2 * kv_groups(dim) : 0;
}
// Where the code of number d of a token lies: which byte, and in which half of it.
struct KvNibble {
  int64_t byte;
  int shift;
};
constexpr KvNibble kv_nibble(int64_t d, int64_t dim) {
  const int64_t group = d / kKvGroup, first = group * kKvGroup, n = dim - first < kKvGroup ? dim - first : kKvGroup, half = (n + 1) / 2;
  return d - first < half ? KvNibble{first / 2 + d - first, 0} : KvNibble{first / 2 + d - first - half, 4};
}

struct KvPool {
  KvDtype k_dtype, v_dtype;
  int64_t blocks, kv_heads, k_dim, v_dim, block_size;
  bool v_aliases_k;  // the values are the first v_dim numbers of the key; `v` is null
  uint8_t* k;        // [kv_heads, blocks, k_dim, block_size], each block followed by its scales
  uint8_t* v;        // [kv_heads, blocks, block_size, v_dim], likewise

  // Bytes of one token and head, without scales.
  int64_t k_row() const { return kv_code_bytes(k_dtype, k_dim); }
  int64_t v_row() const { return kv_code_bytes(v_dtype, v_dim); }
  // Bytes of one head of a block.
  int64_t k_bytes() const { return block_size * (k_row() + kv_scale_bytes(k_dtype, k_dim)); }
  int64_t v_bytes() const { return v_aliases_k ? 0 : block_size * (v_row() + kv_scale_bytes(v_dtype, v_dim)); }
  // First byte of a head of a block, and of its scales.
  uint8_t* k_head(int64_t block, int64_t head) const { return k + (head * blocks + block) * k_bytes(); }
  uint8_t* v_head(int64_t block, int64_t head) const { return v + (head * blocks + block) * v_bytes(); }
  uint8_t* k_scales(int64_t block, int64_t head) const { return k_head(block, head) + block_size * k_row(); }
  uint8_t* v_scales(int64_t block, int64_t head) const { return v_head(block, head) + block_size * v_row(); }
};

struct KvKernels {
  // Store a token's k [kv_heads * k_dim] and v [kv_heads * v_dim] in a slot, rounded to nearest even. A row of codes with a number
  // that is not finite reads as NaN altogether.
  void (*write)(const KvPool& pool, int64_t block, int64_t slot, const float* k, const float* v);
  const char* name;
};

const KvKernels& kv_kernels(Isa isa);

void copy_kv_block(const KvPool& pool, int64_t src, int64_t dst);

}  // namespace ridgeline
