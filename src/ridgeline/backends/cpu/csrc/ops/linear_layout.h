// The packed layout of every encoding: where a row tile's codes and scales lie. Knows no arithmetic.
//
// A packed matrix is a sequence of pairs of row tiles (8 rows each); a pair is a sequence of superblocks in order of k: the head
// of the first tile and of the second, then group 0 (32 columns; one in a float format) of both, group 1, ... So a pair is
// one sequential stream; an odd last tile stands alone. Inside a group, codes are in planes:
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

// kBlockBytes: of the file. kGroups, kHeadBytes, kGroupBytes: of a packed superblock. kHalves: scales per group (2 = every 16 columns).
// kMin: the format has minimums. kOffset: value code = unsigned code - kOffset. k...At: byte offsets in
// the group, or in the head where there is one.
struct LayoutQ4_0 {
  static constexpr Encoding kEncoding = Encoding::kQ4_0;
  static constexpr int kBlockBytes = 18, kGroups = 1, kGroupBytes = 144, kHeadBytes = 0, kHalves = 1, kOffset = 8;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 128;
};
struct LayoutIQ4_NL : LayoutQ4_0 {
  static constexpr Encoding kEncoding = Encoding::kIQ4_NL;
  static constexpr int kOffset = 128;
};
struct LayoutMXFP4 {
  static constexpr Encoding kEncoding = Encoding::kMXFP4;
  static constexpr int kBlockBytes = 17, kGroups = 1, kGroupBytes = 136, kHeadBytes = 0, kHalves = 1, kOffset = 12;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 128;
};
struct LayoutQ4_1 {
  static constexpr Encoding kEncoding = Encoding::kQ4_1;
  static constexpr int kBlockBytes = 20, kGroups = 1, kGroupBytes = 160, kHeadBytes = 0, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 128, kMinAt = 144;
};
struct LayoutQ5_0 {
  static constexpr Encoding kEncoding = Encoding::kQ5_0;
  static constexpr int kBlockBytes = 22, kGroups = 1, kGroupBytes = 176, kHeadBytes = 0, kHalves = 1, kOffset = 16;
  static constexpr bool kMin = false;
  static constexpr int kBitsAt = 128, kScaleAt = 160;
};
struct LayoutQ5_1 {
  static constexpr Encoding kEncoding = Encoding::kQ5_1;
  static constexpr int kBlockBytes = 24, kGroups = 1, kGroupBytes = 192, kHeadBytes = 0, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kBitsAt = 128, kScaleAt = 160, kMinAt = 176;
};
struct LayoutQ8_0 {
  static constexpr Encoding kEncoding = Encoding::kQ8_0;
  static constexpr int kBlockBytes = 34, kGroups = 1, kGroupBytes = 272, kHeadBytes = 0, kHalves = 1, kOffset = 128;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 256;
};
struct LayoutQ2_K {
  static constexpr Encoding kEncoding = Encoding::kQ2_K;
  static constexpr int kBlockBytes = 84, kGroups = 8, kGroupBytes = 80, kHeadBytes = 32, kHalves = 2, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 0, kMinAt = 16;  // a group: pairs, then scale | min << 4 [half][8]
};
struct LayoutQ3_K {
  static constexpr Encoding kEncoding = Encoding::kQ3_K;
  static constexpr int kBlockBytes = 110, kGroups = 8, kGroupBytes = 96, kHeadBytes = 112, kHalves = 2, kOffset = 4;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 0, kSixAt = 16;  // a group: pairs, then bits; u, v: the halves' scales
};
struct LayoutQ4_K {
  static constexpr Encoding kEncoding = Encoding::kQ4_K;
  static constexpr int kBlockBytes = 144, kGroups = 8, kGroupBytes = 128, kHeadBytes = 128, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 0, kMinAt = 16, kSixAt = 32;  // u, v: scale, minimum
};
struct LayoutQ5_K {
  static constexpr Encoding kEncoding = Encoding::kQ5_K;
  static constexpr int kBlockBytes = 176, kGroups = 8, kGroupBytes = 160, kHeadBytes = 128, kHalves = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static constexpr int kScaleAt = 0, kMinAt = 16, kSixAt = 32;  // a group: nibbles, then bits
};
struct LayoutQ6_K {
  static constexpr Encoding kEncoding = Encoding::kQ6_K;
  static constexpr int kBlockBytes = 210, kGroups = 8, kGroupBytes = 192, kHeadBytes = 144, kHalves = 2, kOffset = 32;
  static constexpr bool kMin = false;
  static constexpr int kScaleAt = 0, kBytesAt = 16;  // int8 scales [group][half][8]; a group: nibbles, pairs
};
struct LayoutIQ4_XS {
  static constexpr Encoding kEncoding = Encoding::kIQ4_XS;
  static constexpr int kBlockBytes = 136, kGroups = 8, kGroupBytes = 128, kHeadBytes = 64, kHalves = 1, kOffset = 128;
  static constexpr bool kMin = false;
  // Scales: low halves of group g at 8 (g % 4) + r (high nibble when g >= 4), then 2-bit tops at 8 (g % 2) + r, bits 2 (g / 2).
  static constexpr int kScaleAt = 0, kLowAt = 16, kTopAt = 48;
};

// Where one row tile lies: offsets of its first superblock's head and group, and the distances to the next ones.
struct TileSpan {
  int64_t head, group, group_step, step;
  bool paired;  // the tile is one of two
};
static inline TileSpan tile_span(int64_t tile, int64_t rows, int64_t superblocks, int64_t head_bytes, int64_t group_bytes, int64_t groups) {
  const int64_t tiles = (rows + kRowTile - 1) / kRowTile, first = tile / 2 * 2, bytes = head_bytes + groups * group_bytes;
  const int64_t base = first * superblocks * bytes, side = tile - first;
  if (first + 1 == tiles) return {base, base + head_bytes, group_bytes, bytes, false};
  return {base + side * head_bytes, base + 2 * head_bytes + side * group_bytes, 2 * group_bytes, 2 * bytes, true};
}
template <typename L>
TileSpan tile_span(int64_t tile, int64_t rows, int64_t columns) {
  return tile_span(tile, rows, columns / (kGroup * L::kGroups), L::kHeadBytes, L::kGroupBytes, L::kGroups);
}
static inline TileSpan float_span(int64_t tile, int64_t rows, int64_t columns, int64_t value_bytes) {
  return tile_span(tile, rows, columns, 0, kRowTile * value_bytes, 1);
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
