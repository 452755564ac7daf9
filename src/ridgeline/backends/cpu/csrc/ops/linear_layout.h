// The packed layout of every encoding: where a row tile's codes and scales lie. Knows no arithmetic.
//
// A packed matrix is a sequence of pairs of row tiles (8 rows each); a pair is a sequence of superblocks in order of k, the
// first tile's and the second's by turns, each with all bytes of 8 rows x (kGroups * 32) columns (one column of a float
// format). So a pair is one sequential stream; an odd last tile stands alone. Inside a superblock, codes are in planes:
//   nibbles (128 B a group): byte 32 i + 4 r + b holds k = 4 i + b of row r in its low half and k + 16 in its high half, i < 4
//   pairs    (64 B a group): byte 32 j + 4 r + b holds k = 16 j + 4 i + b in bits 2 i and 2 i + 1, j < 2, i < 4
//   bits     (32 B a group): byte 4 r + b holds k = 4 i + b in bit i, i < 8
//   bytes   (256 B a group): byte 32 i + 4 r + b holds k = 4 i + b, i < 8
// Six-bit scales of 8 groups (two numbers u, v per group and row) are 64 bytes of low halves, u | v << 4 at 8 g + r, then 32
// bytes of high halves: the nibble u >> 4 | (v >> 4) << 2 of group g is in byte 8 (g % 4) + r, its high half when g >= 4.
#pragma once
#include <cstdint>

#include "ops/linear.h"

namespace ridgeline {

// kBlock, kBlockBytes: of the file. kGroups, kBytes: of a packed superblock. kHalves: scales per group (2 = every 16 columns).
// kMin: the format has minimums. kOffset: value code = unsigned code - kOffset. k...At: byte offsets in a superblock.
struct LayoutQ4_0 {
  static constexpr Encoding kEncoding = Encoding::kQ4_0;
  static constexpr int kBlockBytes = 18, kGroups = 1, kBytes = 144, kHalves = 1, kOffset = 8;
  static constexpr bool kMin = false;
  static constexpr int kCodesAt = 0, kScaleAt = 128;
};
struct LayoutIQ4_NL : LayoutQ4_0 {
  static constexpr Encoding kEncoding = Encoding::kIQ4_NL;
  static constexpr int kOffset = 128;
};
struct LayoutMXFP4 {
  static constexpr Encoding kEncoding = Encoding::kMXFP4;
  static constexpr int kBlockBytes = 17, kGroups = 1, kBytes = 136, kHalves = 1, kOffset = 12;
  static constexpr bool kMin = false;
  static constexpr int kCodesAt = 0, kScaleAt = 128;
};
struct LayoutQ4_1 {
  static constexpr Encoding kEncoding = Encoding::kQ4_1;
  static constexpr int kBlockBytes = 20, kGroups = 1, kBytes = 160, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kCodesAt = 0, kScaleAt = 128, kMinAt = 144;
};
struct LayoutQ5_0 {
  static constexpr Encoding kEncoding = Encoding::kQ5_0;
  static constexpr int kBlockBytes = 22, kGroups = 1, kBytes = 176, kHalves = 1, kOffset = 16;
  static constexpr bool kMin = false;
  static constexpr int kCodesAt = 0, kBitsAt = 128, kScaleAt = 160;
};
struct LayoutQ5_1 {
  static constexpr Encoding kEncoding = Encoding::kQ5_1;
  static constexpr int kBlockBytes = 24, kGroups = 1, kBytes = 192, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kCodesAt = 0, kBitsAt = 128, kScaleAt = 160, kMinAt = 176;
};
struct LayoutQ8_0 {
  static constexpr Encoding kEncoding = Encoding::kQ8_0;
  static constexpr int kBlockBytes = 34, kGroups = 1, kBytes = 272, kHalves = 1, kOffset = 128;
  static constexpr bool kMin = false;
  static constexpr int kCodesAt = 0, kScaleAt = 256;
};
struct LayoutQ2_K {
  static constexpr Encoding kEncoding = Encoding::kQ2_K;
  static constexpr int kBlockBytes = 84, kGroups = 8, kBytes = 672, kHalves = 2, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 0, kMinAt = 16, kCodesAt = 32, kGroupBytes = 80;  // a group: pairs, then scale | min << 4 [half][8]
};
struct LayoutQ3_K {
  static constexpr Encoding kEncoding = Encoding::kQ3_K;
  static constexpr int kBlockBytes = 110, kGroups = 8, kBytes = 880, kHalves = 2, kOffset = 4;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 0, kSixAt = 16, kCodesAt = 112, kGroupBytes = 96;  // a group: pairs, then bits; u, v: the halves' scales
};
struct LayoutQ4_K {
  static constexpr Encoding kEncoding = Encoding::kQ4_K;
  static constexpr int kBlockBytes = 144, kGroups = 8, kBytes = 1152, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 0, kMinAt = 16, kSixAt = 32, kCodesAt = 128, kGroupBytes = 128;  // u, v: scale, minimum
};
struct LayoutQ5_K {
  static constexpr Encoding kEncoding = Encoding::kQ5_K;
  static constexpr int kBlockBytes = 176, kGroups = 8, kBytes = 1408, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 0, kMinAt = 16, kSixAt = 32, kCodesAt = 128, kGroupBytes = 160;  // a group: nibbles, then bits
};
struct LayoutQ6_K {
  static constexpr Encoding kEncoding = Encoding::kQ6_K;
  static constexpr int kBlockBytes = 210, kGroups = 8, kBytes = 1680, kHalves = 2, kOffset = 32;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 0, kBytesAt = 16, kCodesAt = 144,
                       kGroupBytes = 192;  // int8 scales [group][half][8]; a group: nibbles, pairs
};
struct LayoutIQ4_XS {
  static constexpr Encoding kEncoding = Encoding::kIQ4_XS;
  static constexpr int kBlockBytes = 136, kGroups = 8, kBytes = 1088, kHalves = 1, kOffset = 128;
  static constexpr bool kMin = false;
  // Scales: low halves of group g at 8 (g % 4) + r (high nibble when g >= 4), then 2-bit tops at 8 (g % 2) + r, bits 2 (g / 2).
  static constexpr int kScaleAt = 0, kLowAt = 16, kTopAt = 48, kCodesAt = 64, kGroupBytes = 128;
};

// The superblocks of one row tile: the first, and the distance to the next.
struct TileSpan {
  int64_t at, step;
  bool paired;  // the tile is one of two
};
static inline TileSpan tile_span(int64_t tile, int64_t rows, int64_t superblocks, int64_t superblock_bytes) {
  const int64_t tiles = (rows + kRowTile - 1) / kRowTile, first = tile / 2 * 2, base = first * superblocks * superblock_bytes;
  if (first + 1 == tiles) return {base, superblock_bytes, false};
  return {base + tile % 2 * superblock_bytes, 2 * superblock_bytes, true};
}

constexpr int8_t kTableIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kTableMXFP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Calls f(Layout{}) for the layout of a quantized encoding; false when there is none.
template <typename F>
bool with_layout(Encoding encoding, F&& f) {
  switch (encoding) {
    case Encoding::kQ4_0:
      f(LayoutQ4_0{});
      return true;
    case Encoding::kQ4_1:
      f(LayoutQ4_1{});
      return true;
    case Encoding::kQ5_0:
      f(LayoutQ5_0{});
      return true;
    case Encoding::kQ5_1:
      f(LayoutQ5_1{});
      return true;
    case Encoding::kQ8_0:
      f(LayoutQ8_0{});
      return true;
    case Encoding::kQ2_K:
      f(LayoutQ2_K{});
      return true;
    case Encoding::kQ3_K:
      f(LayoutQ3_K{});
      return true;
    case Encoding::kQ4_K:
      f(LayoutQ4_K{});
      return true;
    case Encoding::kQ5_K:
      f(LayoutQ5_K{});
      return true;
    case Encoding::kQ6_K:
      f(LayoutQ6_K{});
      return true;
    case Encoding::kIQ4_NL:
      f(LayoutIQ4_NL{});
      return true;
    case Encoding::kIQ4_XS:
      f(LayoutIQ4_XS{});
      return true;
    case Encoding::kMXFP4:
      f(LayoutMXFP4{});
      return true;
    default:
      return false;
  }
}

}  // namespace ridgeline
