// Linear layers on packed weights: y = x W^T. One packed form serves one row (decode) and many rows (prefill).
//
// Promise: y[t][r] is the same bit pattern for any T, any split of the rows over threads and any order of calls (per Isa).
#pragma once
#include <cstddef>
#include <cstdint>

#include "isa/isa.h"

namespace ridgeline {

// GGML numbers, as in ridgeline/encodings.py.
enum class Encoding : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39
};

constexpr int kRowTile = 8;     // output rows are interleaved by eight: a SIMD lane is an output row
constexpr int kGroup = 32;      // activations are quantized in groups of 32 inside one row
constexpr int kTokenTile = 32;  // tokens that are laid out together: parts of a step that begin at multiples of it stand alone

struct PackedMatrix {
  Encoding encoding;
  int64_t rows;         // output features, as in the file (the packed form pads to a multiple of kRowTile)
  int64_t columns;      // input features
  const uint8_t* data;  // packed_bytes(...) long, 64-byte aligned
};

// The step's activations, prepared once per Linear input by `quantize` and shared by all matrices that read it.
struct Activations {
  int64_t tokens;       // T
  int64_t columns;      // K
  const float* values;  // [T, stride] the float rows themselves (float weight formats read these)
  int64_t stride;       // in floats
  // Sizes as below; the order inside is the kernels' own (tiles of tokens, see linear_internal.h), except that T = 1 is a plain row.
  int8_t* codes;  // [T, K rounded up to 32], round-to-nearest-even of x / scale, in -127..127; padded columns are 0
  float* scales;  // [T, groups], amax / 127 (0 when the group is all zero, NaN when one is NaN)
  int32_t* sums;  // [T, groups] sums of codes 0..15 (low 16 bits) and 16..31 (high 16 bits)
};

// Tokens [first, first + tokens) of quantized activations; first, and the end unless it is a's, are multiples of kTokenTile.
static inline Activations tokens_of(const Activations& a, int64_t first, int64_t tokens) {
  const int64_t groups = (a.columns + kGroup - 1) / kGroup;
  const auto at = [&](auto* p, int64_t each) { return p == nullptr ? p : p + first * each; };
  return {tokens, a.columns, at(a.values, a.stride), a.stride, at(a.codes, groups * kGroup), at(a.scales, groups), at(a.sums, groups)};
}

int64_t packed_bytes(Encoding encoding, int64_t rows, int64_t columns);

// Pack rows [first, last) (multiples of kRowTile, or the end) from file layout. `src` is the file's first row of the matrix.
void pack_rows(Encoding encoding, const uint8_t* src, int64_t src_row_bytes, int64_t rows, int64_t columns, int64_t first, int64_t last,
               uint8_t* dst);

// False for float formats, whose kernels read `values`.
bool needs_codes(Encoding encoding);

struct LinearKernels {
  // Quantize token rows [first, last) of `a` (codes, scales, sums).
  void (*quantize)(const Activations& a, int64_t first, int64_t last);
  // y[t * y_stride + r] for all t and rows r in [first, last), multiples of kRowTile or the end. Adds nothing: overwrites.
  // Row tiles are packed in pairs: ranges that begin at multiples of 16 rows run on whole vectors; 64 rows or more amortize the call.
  void (*matmul)(const PackedMatrix& w, const Activations& a, float* y, int64_t y_stride, int64_t first, int64_t last);
  // Decode one row of the packed matrix to floats (embedding lookup), exactly as the format's definition says.
  void (*decode_row)(const PackedMatrix& w, int64_t row, float* out);
  const char* name;  // what `inspect --kernels` shows, e.g. "q4_1 avx512 vnni 8x16"
};

// Never null: formats without a fast kernel on `isa` get the portable one.
const LinearKernels& linear_kernels(Isa isa, Encoding encoding);

}  // namespace ridgeline
