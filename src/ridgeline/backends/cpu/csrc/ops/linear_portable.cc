// The portable linear kernels: the definition of what the fast ones compute, group by group, in plain C++.
#include <algorithm>
#include <cmath>

#include "ops/linear_internal.h"
#include "ops/linear_layout.h"

namespace ridgeline {
namespace {

// One group of 32 columns of a row tile, decoded: value = scale[half] * code + min[half], half = k / 16 (0 when kHalves is 1).
struct Group {
  int8_t codes[kGroup][kRowTile];
  float scale[2][kRowTile];
  float min[2][kRowTile];
};

int nibble(const uint8_t* plane, int k, int r) { return (plane[32 * ((k % 16) / 4) + 4 * r + k % 4] >> (k < 16 ? 0 : 4)) & 15; }
int pair(const uint8_t* plane, int k, int r) { return (plane[32 * (k / 16) + 4 * r + k % 4] >> (2 * ((k % 16) / 4))) & 3; }
int bit(const uint8_t* plane, int k, int r) { return (plane[4 * r + k % 4] >> (k / 4)) & 1; }
float half_at(const uint8_t* p, int r) { return f16_to_f32(load_u16(p + 2 * r)); }

struct Six {
  int u, v;
};
Six six(const uint8_t* plane, int g, int r) {
  const int low = plane[8 * g + r], top = plane[64 + 8 * (g % 4) + r] >> (g < 4 ? 0 : 4);
  return {(low & 15) | (top & 3) << 4, low >> 4 | ((top >> 2) & 3) << 4};
}

template <typename Code>
void fill(Group& out, Code code) {
  for (int k = 0; k < kGroup; ++k)
    for (int r = 0; r < kRowTile; ++r) out.codes[k][r] = static_cast<int8_t>(code(k, r));
}

void unpack(LayoutQ4_0 l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return nibble(p, k, r) - 8; });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = half_at(p + l.kScaleAt, r);
}
void unpack(LayoutIQ4_NL l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return kTableIQ4[nibble(p, k, r)]; });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = half_at(p + l.kScaleAt, r);
}
void unpack(LayoutMXFP4 l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return kTableMXFP4[nibble(p, k, r)]; });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = e8m0_half(p[l.kScaleAt + r]);
}
void unpack(LayoutQ4_1 l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return nibble(p, k, r); });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = half_at(p + l.kScaleAt, r), out.min[0][r] = half_at(p + l.kMinAt, r);
}
void unpack(LayoutQ5_0 l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return (nibble(p, k, r) | bit(p + l.kBitsAt, k, r) << 4) - 16; });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = half_at(p + l.kScaleAt, r);
}
void unpack(LayoutQ5_1 l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return nibble(p, k, r) | bit(p + l.kBitsAt, k, r) << 4; });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = half_at(p + l.kScaleAt, r), out.min[0][r] = half_at(p + l.kMinAt, r);
}
void unpack(LayoutQ8_0 l, const uint8_t*, const uint8_t* p, int, Group& out) {
  fill(out, [&](int k, int r) { return static_cast<int8_t>(p[32 * (k / 4) + 4 * r + k % 4]); });
  for (int r = 0; r < kRowTile; ++r) out.scale[0][r] = half_at(p + l.kScaleAt, r);
}
void unpack(LayoutQ2_K l, const uint8_t* p, const uint8_t* group, int, Group& out) {
  fill(out, [&](int k, int r) { return pair(group, k, r); });
  for (int h = 0; h < 2; ++h)
    for (int r = 0; r < kRowTile; ++r) {
      const int both = group[64 + 8 * h + r];
      out.scale[h][r] = half_at(p + l.kScaleAt, r) * static_cast<float>(both & 15);
      out.min[h][r] = -(half_at(p + l.kMinAt, r) * static_cast<float>(both >> 4));
    }
}
void unpack(LayoutQ3_K l, const uint8_t* p, const uint8_t* group, int g, Group& out) {
  fill(out, [&](int k, int r) { return (pair(group, k, r) | bit(group + 64, k, r) << 2) - 4; });
  for (int r = 0; r < kRowTile; ++r) {
    const Six s = six(p + l.kSixAt, g, r);
    out.scale[0][r] = half_at(p + l.kScaleAt, r) * static_cast<float>(s.u - 32);
    out.scale[1][r] = half_at(p + l.kScaleAt, r) * static_cast<float>(s.v - 32);
  }
}
template <typename L>
void unpack_scale_min(L l, const uint8_t* p, int g, Group& out) {
  for (int r = 0; r < kRowTile; ++r) {
    const Six s = six(p + l.kSixAt, g, r);
    out.scale[0][r] = half_at(p + l.kScaleAt, r) * static_cast<float>(s.u);
    out.min[0][r] = -(half_at(p + l.kMinAt, r) * static_cast<float>(s.v));
  }
}
void unpack(LayoutQ4_K l, const uint8_t* p, const uint8_t* group, int g, Group& out) {
  fill(out, [&](int k, int r) { return nibble(group, k, r); });
  unpack_scale_min(l, p, g, out);
}
void unpack(LayoutQ5_K l, const uint8_t* p, const uint8_t* group, int g, Group& out) {
  fill(out, [&](int k, int r) { return nibble(group, k, r) | bit(group + 128, k, r) << 4; });
  unpack_scale_min(l, p, g, out);
}
void unpack(LayoutQ6_K l, const uint8_t* p, const uint8_t* group, int g, Group& out) {
  fill(out, [&](int k, int r) { return (nibble(group, k, r) | pair(group + 128, k, r) << 4) - 32; });
  for (int h = 0; h < 2; ++h)
    for (int r = 0; r < kRowTile; ++r) {
      const int s = static_cast<int8_t>(p[l.kBytesAt + 16 * g + 8 * h + r]);
      out.scale[h][r] = half_at(p + l.kScaleAt, r) * static_cast<float>(s);
    }
}
void unpack(LayoutIQ4_XS l, const uint8_t* p, const uint8_t* group, int g, Group& out) {
  fill(out, [&](int k, int r) { return kTableIQ4[nibble(group, k, r)]; });
  for (int r = 0; r < kRowTile; ++r) {
    const int low = (p[l.kLowAt + 8 * (g % 4) + r] >> (g < 4 ? 0 : 4)) & 15, top = (p[l.kTopAt + 8 * (g % 2) + r] >> (2 * (g / 2))) & 3;
    out.scale[0][r] = half_at(p + l.kScaleAt, r) * static_cast<float>((low | top << 4) - 32);
  }
}

// One token, one group: the formula that every ISA repeats, lane by lane.
template <typename L>
void multiply_group(const Group& w, const int8_t* codes, float scale, int32_t sums, float* acc) {
  constexpr int kLength = kGroup / L::kHalves;
  const int half_sums[2] = {L::kHalves == 2 ? low_sum(sums) : low_sum(sums) + high_sum(sums), high_sum(sums)};
  for (int h = 0; h < L::kHalves; ++h) {
    int32_t dot[kRowTile] = {};
    for (int k = h * kLength; k < (h + 1) * kLength; ++k)
      for (int r = 0; r < kRowTile; ++r) dot[r] += static_cast<int32_t>(w.codes[k][r]) * codes[k];
    for (int r = 0; r < kRowTile; ++r) acc[r] = std::fma(static_cast<float>(dot[r]), w.scale[h][r] * scale, acc[r]);
  }
  if (!L::kMin) return;
  for (int h = 0; h < L::kHalves; ++h)
    for (int r = 0; r < kRowTile; ++r) acc[r] = std::fma(w.min[h][r], scale * static_cast<float>(half_sums[h]), acc[r]);
}

template <typename L>
void unpack_at(const uint8_t* data, const TileSpan& span, int64_t g, Group& out) {
  const int64_t super = g / L::kGroups, in = g % L::kGroups;
  const uint8_t *head = data + span.head + super * span.step, *group = data + span.group + super * span.step + in * span.group_step;
  unpack(L{}, head, group, static_cast<int>(in), out);
}

template <typename L>
void multiply_tile(const uint8_t* data, const TileSpan& span, int64_t groups, const TokenTile& a, float (*acc)[kRowTile]) {
  Group w;
  for (int64_t g = 0; g < groups; ++g) {
    unpack_at<L>(data, span, g, w);
    for (int64_t t = 0; t < a.tokens; ++t) {
      const int64_t at = g * a.tokens + t;
      multiply_group<L>(w, a.codes + at * kGroup, a.scales[at], a.sums[at], acc[t]);
    }
  }
}

template <typename L>
void matmul(const PackedMatrix& w, const Activations& a, float* y, int64_t y_stride, int64_t first, int64_t last) {
  const int64_t groups = w.columns / kGroup;
  for (int64_t t0 = 0; t0 < a.tokens; t0 += kTokenTile) {
    const TokenTile tile = token_tile(a, t0);
    for (int64_t row = first; row < last; row += kRowTile) {
      float acc[kTokenTile][kRowTile] = {};
      const TileSpan span = tile_span<L>(row / kRowTile, w.rows, w.columns);
      multiply_tile<L>(w.data, span, groups, tile, acc);
      const int64_t live = std::min<int64_t>(kRowTile, last - row);
      for (int64_t t = 0; t < tile.tokens; ++t) std::copy_n(acc[t], live, y + (t0 + t) * y_stride + row);
    }
  }
}

template <typename L>
void decode_quantized(const PackedMatrix& w, int64_t row, float* out) {
  const int64_t groups = w.columns / kGroup, r = row % kRowTile;
  const TileSpan span = tile_span<L>(row / kRowTile, w.rows, w.columns);
  Group group;
  for (int64_t g = 0; g < groups; ++g) {
    unpack_at<L>(w.data, span, g, group);
    for (int k = 0; k < kGroup; ++k) {
      const int h = L::kHalves == 2 ? k / 16 : 0;
      const float scaled = group.scale[h][r] * static_cast<float>(group.codes[k][r]);
      out[g * kGroup + k] = L::kMin ? scaled + group.min[h][r] : scaled;
    }
  }
}

template <typename L>
const LinearKernels* kernels_of(const char* name) {
  static const LinearKernels kernels = {quantize_portable, matmul<L>, decode_quantized<L>, name};
  return &kernels;
}

}  // namespace

const LinearKernels* linear_kernels_portable(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ4_0:
      return kernels_of<LayoutQ4_0>("q4_0 portable 8x32");
    case Encoding::kQ4_1:
      return kernels_of<LayoutQ4_1>("q4_1 portable 8x32");
    case Encoding::kQ5_0:
      return kernels_of<LayoutQ5_0>("q5_0 portable 8x32");
    case Encoding::kQ5_1:
      return kernels_of<LayoutQ5_1>("q5_1 portable 8x32");
    case Encoding::kQ8_0:
      return kernels_of<LayoutQ8_0>("q8_0 portable 8x32");
    case Encoding::kQ2_K:
      return kernels_of<LayoutQ2_K>("q2_k portable 8x32");
    case Encoding::kQ3_K:
      return kernels_of<LayoutQ3_K>("q3_k portable 8x32");
    case Encoding::kQ4_K:
      return kernels_of<LayoutQ4_K>("q4_k portable 8x32");
    case Encoding::kQ5_K:
      return kernels_of<LayoutQ5_K>("q5_k portable 8x32");
    case Encoding::kQ6_K:
      return kernels_of<LayoutQ6_K>("q6_k portable 8x32");
    case Encoding::kIQ4_NL:
      return kernels_of<LayoutIQ4_NL>("iq4_nl portable 8x32");
    case Encoding::kIQ4_XS:
      return kernels_of<LayoutIQ4_XS>("iq4_xs portable 8x32");
    case Encoding::kMXFP4:
      return kernels_of<LayoutMXFP4>("mxfp4 portable 8x32");
    default:
      return float_kernels_portable(encoding);
  }
}

void decode_row_portable(const PackedMatrix& w, int64_t row, float* out) { linear_kernels_portable(w.encoding)->decode_row(w, row, out); }

}  // namespace ridgeline
