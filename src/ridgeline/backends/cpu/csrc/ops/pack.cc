// Packs file rows into the layout of linear_layout.h. Moves bits only: no value is ever decoded or rounded.
#include <algorithm>

#include "ops/linear_internal.h"
#include "ops/linear_layout.h"

namespace ridgeline {
namespace {

// Planes: each writes the 32 codes of one row of one group.
void put_nibbles(const uint8_t* c, int r, uint8_t* plane) {
  for (int i = 0; i < 4; ++i)
    for (int b = 0; b < 4; ++b) plane[32 * i + 4 * r + b] = static_cast<uint8_t>((c[4 * i + b] & 15) | (c[16 + 4 * i + b] << 4));
}
void put_pairs(const uint8_t* c, int shift, int r, uint8_t* plane) {
  for (int j = 0; j < 2; ++j)
    for (int b = 0; b < 4; ++b) {
      int v = 0;
      for (int i = 0; i < 4; ++i) v |= ((c[16 * j + 4 * i + b] >> shift) & 3) << (2 * i);
      plane[32 * j + 4 * r + b] = static_cast<uint8_t>(v);
    }
}
void put_bits(const uint8_t* c, int shift, int r, uint8_t* plane) {
  for (int b = 0; b < 4; ++b) {
    int v = 0;
    for (int i = 0; i < 8; ++i) v |= ((c[4 * i + b] >> shift) & 1) << i;
    plane[4 * r + b] = static_cast<uint8_t>(v);
  }
}
void put_bytes(const uint8_t* c, int r, uint8_t* plane) {
  for (int i = 0; i < 8; ++i) std::memcpy(plane + 32 * i + 4 * r, c + 4 * i, 4);
}
void put_six(int u, int v, int g, int r, uint8_t* plane) {
  plane[8 * g + r] = static_cast<uint8_t>((u & 15) | (v & 15) << 4);
  const int top = (u >> 4) | (v >> 4) << 2;
  uint8_t& byte = plane[64 + 8 * (g % 4) + r];
  byte = static_cast<uint8_t>(g < 4 ? top : byte | top << 4);  // groups come in order, so the low half is written first
}

// A 32-block whose nibbles j and j + 16 share a byte: already our order, four bytes at a time.
void move_nibbles(const uint8_t* qs, int r, uint8_t* plane) {
  for (int i = 0; i < 4; ++i) std::memcpy(plane + 32 * i + 4 * r, qs + 4 * i, 4);
}
void high_bits_of(const uint8_t* qh, uint8_t* c) {
  uint32_t h;
  std::memcpy(&h, qh, 4);
  for (int k = 0; k < 32; ++k) c[k] = (h >> k) & 1;
}

// Where a superblock of a row tile goes: its head, its first group and the distance from group to group.
struct Place {
  uint8_t *head, *group;
  int64_t group_step;
};

void pack_block(LayoutQ4_0, const uint8_t* in, int r, const Place& out) {
  move_nibbles(in + 2, r, out.group);
  std::memcpy(out.group + LayoutQ4_0::kScaleAt + 2 * r, in, 2);
}
void pack_block(LayoutIQ4_NL, const uint8_t* in, int r, const Place& out) { pack_block(LayoutQ4_0{}, in, r, out); }
void pack_block(LayoutMXFP4 l, const uint8_t* in, int r, const Place& out) {
  move_nibbles(in + 1, r, out.group);
  out.group[l.kScaleAt + r] = in[0];
}
void pack_block(LayoutQ4_1 l, const uint8_t* in, int r, const Place& out) {
  move_nibbles(in + 4, r, out.group);
  std::memcpy(out.group + l.kScaleAt + 2 * r, in, 2);
  std::memcpy(out.group + l.kMinAt + 2 * r, in + 2, 2);
}
void pack_block(LayoutQ5_0 l, const uint8_t* in, int r, const Place& out) {
  uint8_t c[32];
  move_nibbles(in + 6, r, out.group);
  high_bits_of(in + 2, c);
  put_bits(c, 0, r, out.group + l.kBitsAt);
  std::memcpy(out.group + l.kScaleAt + 2 * r, in, 2);
}
void pack_block(LayoutQ5_1 l, const uint8_t* in, int r, const Place& out) {
  uint8_t c[32];
  move_nibbles(in + 8, r, out.group);
  high_bits_of(in + 4, c);
  put_bits(c, 0, r, out.group + l.kBitsAt);
  std::memcpy(out.group + l.kScaleAt + 2 * r, in, 2);
  std::memcpy(out.group + l.kMinAt + 2 * r, in + 2, 2);
}
void pack_block(LayoutQ8_0 l, const uint8_t* in, int r, const Place& out) {
  put_bytes(in + 2, r, out.group);
  std::memcpy(out.group + l.kScaleAt + 2 * r, in, 2);
}

// Two bits of column k in Q2_K and Q3_K: halves of 128 columns, four groups of 32 per half in one run of 32 bytes.
int two_bits(const uint8_t* qs, int g, int k) { return (qs[32 * (g / 4) + k] >> (2 * (g % 4))) & 3; }

void pack_block(LayoutQ2_K l, const uint8_t* in, int r, const Place& out) {
  const uint8_t *scales = in, *qs = in + 16;
  uint8_t c[32];
  for (int g = 0; g < 8; ++g) {
    uint8_t* group = out.group + g * out.group_step;
    for (int k = 0; k < 32; ++k) c[k] = static_cast<uint8_t>(two_bits(qs, g, k));
    put_pairs(c, 0, r, group);
    group[64 + r] = scales[2 * g];
    group[72 + r] = scales[2 * g + 1];
  }
  std::memcpy(out.head + l.kScaleAt + 2 * r, in + 80, 2);
  std::memcpy(out.head + l.kMinAt + 2 * r, in + 82, 2);
}

void pack_block(LayoutQ3_K l, const uint8_t* in, int r, const Place& out) {
  const uint8_t *mask = in, *qs = in + 32, *s = in + 96;
  uint8_t c[32];
  int six[16];
  for (int i = 0; i < 16; ++i) six[i] = ((s[i % 8] >> (4 * (i / 8))) & 15) | ((s[8 + i % 4] >> (2 * (i / 4))) & 3) << 4;
  for (int g = 0; g < 8; ++g) {
    uint8_t* group = out.group + g * out.group_step;
    for (int k = 0; k < 32; ++k) c[k] = static_cast<uint8_t>(two_bits(qs, g, k) | ((mask[k] >> g) & 1) << 2);
    put_pairs(c, 0, r, group);
    put_bits(c, 2, r, group + 64);
    put_six(six[2 * g], six[2 * g + 1], g, r, out.head + l.kSixAt);
  }
  std::memcpy(out.head + l.kScaleAt + 2 * r, in + 108, 2);
}

// The 6-bit scale and minimum of group g of Q4_K and Q5_K, from their 12 bytes.
void put_scale_min(const uint8_t* s, int g, int r, uint8_t* plane) {
  if (g < 4) return put_six(s[g] & 63, s[g + 4] & 63, g, r, plane);
  put_six((s[g + 4] & 15) | (s[g - 4] >> 6) << 4, (s[g + 4] >> 4) | (s[g] >> 6) << 4, g, r, plane);
}

void pack_block(LayoutQ4_K l, const uint8_t* in, int r, const Place& out) {
  const uint8_t *s = in + 4, *qs = in + 16;
  uint8_t nibbles[16];
  for (int g = 0; g < 8; ++g) {
    const uint8_t* run = qs + 32 * (g / 2);
    for (int k = 0; k < 16; ++k) {
      const int low = g % 2 ? run[k] >> 4 : run[k] & 15, high = g % 2 ? run[k + 16] & 0xf0 : run[k + 16] << 4;
      nibbles[k] = static_cast<uint8_t>(low | high);
    }
    move_nibbles(nibbles, r, out.group + g * out.group_step);
    put_scale_min(s, g, r, out.head + l.kSixAt);
  }
  std::memcpy(out.head + l.kScaleAt + 2 * r, in, 2);
  std::memcpy(out.head + l.kMinAt + 2 * r, in + 2, 2);
}

void pack_block(LayoutQ5_K l, const uint8_t* in, int r, const Place& out) {
  const uint8_t *s = in + 4, *qh = in + 16, *qs = in + 48;
  uint8_t c[32];
  for (int g = 0; g < 8; ++g) {
    uint8_t* group = out.group + g * out.group_step;
    const uint8_t* run = qs + 32 * (g / 2);
    for (int k = 0; k < 32; ++k) c[k] = static_cast<uint8_t>(((run[k] >> (4 * (g % 2))) & 15) | ((qh[k] >> g) & 1) << 4);
    put_nibbles(c, r, group);
    put_bits(c, 4, r, group + 128);
    put_scale_min(s, g, r, out.head + l.kSixAt);
  }
  std::memcpy(out.head + l.kScaleAt + 2 * r, in, 2);
  std::memcpy(out.head + l.kMinAt + 2 * r, in + 2, 2);
}

void pack_block(LayoutQ6_K l, const uint8_t* in, int r, const Place& out) {
  const uint8_t *ql = in, *qh = in + 128, *scales = in + 192;
  uint8_t c[32];
  for (int g = 0; g < 8; ++g) {
    const uint8_t *low = ql + 64 * (g / 4) + 32 * (g % 2), *high = qh + 32 * (g / 4);
    const int low_shift = g % 4 < 2 ? 0 : 4, high_shift = 2 * (g % 4);
    uint8_t* group = out.group + g * out.group_step;
    for (int k = 0; k < 32; ++k) c[k] = static_cast<uint8_t>(((low[k] >> low_shift) & 15) | ((high[k] >> high_shift) & 3) << 4);
    put_nibbles(c, r, group);
    put_pairs(c, 4, r, group + 128);
    out.head[l.kBytesAt + 16 * g + r] = scales[2 * g];
    out.head[l.kBytesAt + 16 * g + 8 + r] = scales[2 * g + 1];
  }
  std::memcpy(out.head + l.kScaleAt + 2 * r, in + 208, 2);
}

void pack_block(LayoutIQ4_XS l, const uint8_t* in, int r, const Place& out) {
  const uint16_t tops = load_u16(in + 2);
  for (int g = 0; g < 8; ++g) {
    const int low = (in[4 + g / 2] >> (4 * (g % 2))) & 15, top = (tops >> (2 * g)) & 3;
    uint8_t &lows = out.head[l.kLowAt + 8 * (g % 4) + r], &high = out.head[l.kTopAt + 8 * (g % 2) + r];
    lows = static_cast<uint8_t>(g < 4 ? low : lows | low << 4);
    high = static_cast<uint8_t>(g < 2 ? top : high | top << (2 * (g / 2)));
    move_nibbles(in + 8 + 16 * g, r, out.group + g * out.group_step);
  }
  std::memcpy(out.head + l.kScaleAt + 2 * r, in, 2);
}

int64_t padded_rows(int64_t rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

int64_t float_bytes(Encoding encoding) { return encoding == Encoding::kF32 ? 4 : 2; }

}  // namespace

bool needs_codes(Encoding encoding) { return !(encoding == Encoding::kF32 || encoding == Encoding::kF16 || encoding == Encoding::kBF16); }

int64_t packed_bytes(Encoding encoding, int64_t rows, int64_t columns) {
  if (!needs_codes(encoding)) return padded_rows(rows) * columns * float_bytes(encoding);
  int64_t bytes = 0;
  with_layout(encoding, [&](auto l) {
    bytes = padded_rows(rows) / kRowTile * (columns / (kGroup * l.kGroups)) * (l.kHeadBytes + l.kGroups * l.kGroupBytes);
  });
  return bytes;
}

void pack_rows(Encoding encoding, const uint8_t* src, int64_t src_row_bytes, int64_t rows, int64_t columns, int64_t first, int64_t last,
               uint8_t* dst) {
  for (int64_t tile = first / kRowTile; tile < padded_rows(last) / kRowTile; ++tile) {
    const uint8_t* in = src + tile * kRowTile * src_row_bytes;
    const int64_t live = std::min<int64_t>(kRowTile, rows - tile * kRowTile);
    if (!needs_codes(encoding)) {
      const size_t bytes = static_cast<size_t>(float_bytes(encoding));
      const TileSpan span = float_span(tile, rows, columns, static_cast<int64_t>(bytes));
      for (int64_t k = 0; k < columns; ++k) {
        uint8_t* out = dst + span.group + k * span.step;
        if (live < kRowTile) std::memset(out, 0, kRowTile * bytes);
        for (int64_t r = 0; r < live; ++r)
          std::memcpy(out + static_cast<size_t>(r) * bytes, in + r * src_row_bytes + k * static_cast<int64_t>(bytes), bytes);
      }
      continue;
    }
    with_layout(encoding, [&](auto l) {
      const int64_t blocks = columns / (kGroup * l.kGroups);
      const TileSpan span = tile_span<decltype(l)>(tile, rows, columns);
      for (int64_t b = 0; b < blocks; ++b) {
        const Place out = {dst + span.head + b * span.step, dst + span.group + b * span.step, span.group_step};
        if (live < kRowTile) {
          std::memset(out.head, 0, l.kHeadBytes);
          for (int g = 0; g < l.kGroups; ++g) std::memset(out.group + g * out.group_step, 0, l.kGroupBytes);
        }
        for (int64_t r = 0; r < live; ++r) pack_block(l, in + r * src_row_bytes + b * l.kBlockBytes, static_cast<int>(r), out);
      }
    });
  }
}

}  // namespace ridgeline
