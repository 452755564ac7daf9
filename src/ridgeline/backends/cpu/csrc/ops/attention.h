// Attention over the paged cache, in fixed segments of keys counted from position 0. What a row gets from a segment depends on
// that row, its range and the segment's keys alone: not on the tile it is walked in, the block size, the step or the threads.
#pragma once
#include <cstdint>

#include "isa/isa.h"
#include "ops/kv.h"

namespace ridgeline {

constexpr int64_t kKeySegment = 256;
constexpr int64_t kKeyPanel = 64;  // keys converted to float at a time, for all rows of a tile

// Rows (query token and head) of one KV head that are walked together over one block table.
struct AttentionTile {
  const KvPool* pool;
  int64_t kv_head;
  const int32_t* table;
  int64_t rows;
  const float* q;        // [rows, k_dim], as `query` makes them
  const int64_t* first;  // [rows] first key that the row sees
  const int64_t* last;   // [rows] one past its last key
  float softcap;         // 0 for none
  int64_t segment;       // kKeySegment; smaller only in builds broken on purpose
  bool split_k;          // broken on purpose
  // Where the tokens part ways inside a segment: up to position `common` all read `table`, from there on those of each `apart` rows
  // read a table of their own. `common` is a multiple of 16, and so is the block size then.
  const int32_t* const* tables = nullptr;
  int64_t common = 0, apart = 0;
};

// (max, sum, output) of some segments, merged from left to right. out is [rows, v_stride(v_dim)].
struct AttentionState {
  float* largest;
  float* sum;
  float* out;
};

struct AttentionScratch {
  float* keys;      // [k_dim, kKeyPanel]
  float* values;    // [kKeyPanel, v_stride(v_dim)]
  float* scores;    // [rows, kKeySegment]
  float* k_scales;  // [kv_scales(k_dtype, k_dim), kKeySegment], from the segment's first key
  float* v_scales;  // [kKeySegment, kv_scales(v_dtype, v_dim)]
};

// Keys [from, to), by position, that the same worker reads next: a hint, so that they are on their way. Empty for none.
struct AttentionAhead {
  const int32_t* table;
  int64_t kv_head, from, to;
};

constexpr int64_t v_stride(int64_t v_dim) { return (v_dim + 15) / 16 * 16; }

struct AttentionKernels {
  // State of segment `s` alone, for rows that see any of its keys; the others are left as they are.
  void (*segment)(const AttentionTile& tile, int64_t s, const AttentionAhead& ahead, const AttentionScratch& scratch,
                  const AttentionState& state);
  // total = total followed by segment `s`; a row whose first segment is `s` takes it as it is.
  void (*merge)(const AttentionTile& tile, int64_t s, const AttentionState& part, const AttentionState& total);
  // Output of row `row`, [v_dim].
  void (*finish)(const AttentionTile& tile, int64_t row, const AttentionState& total, float* out);
  // A row of queries [k_dim] times `factor`, in the form that `segment` reads: at most k_dim floats.
  void (*query)(const KvPool& pool, const float* x, float factor, float* out);
  const char* name;
};

const AttentionKernels& attention_kernels(Isa isa);

}  // namespace ridgeline
