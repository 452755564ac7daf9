// The portable linear kernels: the definition of what the fast ones compute, group by group, in plain C++.
#include <algorithm>
#include <cmath>

#include "ops/linear_internal.h"
#include "ops/linear_layout.h"

namespace ridgeline {
namespace {

// One group of 32 columns of kRows rows from `first` on of a row tile, decoded: value = scale[half] * code + min[half], where
// half = k / 16 (0 when kHalves is 1).
template <int kRows>
struct Group {
  static constexpr int kCount = kRows;
  int first = 0;
  int8_t codes[kGroup][kRows];
  float scale[2][kRows];
  float min[2][kRows];
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

template <typename G, typename Code>
void fill(G& out, Code code) {
  for (int k = 0; k < kGroup; ++k)
    for (int i = 0; i < G::kCount; ++i) out.codes[k][i] = static_cast<int8_t>(code(k, out.first + i));
}
// f(i, r): the i-th row of the group is row r of the tile.
template <typename G, typename F>
void each_row(G& out, F f) {
  for (int i = 0; i < G::kCount; ++i) f(i, out.first + i);
}

template <typename G>
void unpack(LayoutQ4_0 l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return nibble(p, k, r) - 8; });
  each_row(out, [&](int i, int r) { out.scale[0][i] = half_at(p + l.kScaleAt, r); });
}
template <typename G>
void unpack(LayoutIQ4_NL l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return kTableIQ4[nibble(p, k, r)]; });
  each_row(out, [&](int i, int r) { out.scale[0][i] = half_at(p + l.kScaleAt, r); });
}
template <typename G>
void unpack(LayoutMXFP4 l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return kTableMXFP4[nibble(p, k, r)]; });
  each_row(out, [&](int i, int r) { out.scale[0][i] = e8m0_half(p[l.kScaleAt + r]); });
}
template <typename G>
void unpack(LayoutQ4_1 l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return nibble(p, k, r); });
  each_row(out, [&](int i, int r) { out.scale[0][i] = half_at(p + l.kScaleAt, r), out.min[0][i] = half_at(p + l.kMinAt, r); });
}
template <typename G>
void unpack(LayoutQ5_0 l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return (nibble(p, k, r) | bit(p + l.kBitsAt, k, r) << 4) - 16; });
  each_row(out, [&](int i, int r) { out.scale[0][i] = half_at(p + l.kScaleAt, r); });
}
template <typename G>
void unpack(LayoutQ5_1 l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return nibble(p, k, r) | bit(p + l.kBitsAt, k, r) << 4; });
  each_row(out, [&](int i, int r) { out.scale[0][i] = half_at(p + l.kScaleAt, r), out.min[0][i] = half_at(p + l.kMinAt, r); });
}
template <typename G>
void unpack(LayoutQ8_0 l, const uint8_t*, const uint8_t* p, int, G& out) {
  fill(out, [&](int k, int r) { return static_cast<int8_t>(p[32 * (k / 4) + 4 * r + k % 4]); });
  each_row(out, [&](int i, int r) { out.scale[0][i] = half_at(p + l.kScaleAt, r); });
}
template <typename G>
void unpack(LayoutQ2_K l, const uint8_t* p, const uint8_t* group, int, G& out) {
  fill(out, [&](int k, int r) { return pair(group, k, r); });
  for (int h = 0; h < 2; ++h)
    each_row(out, [&](int i, int r) {
      const int both = group[64 + 8 * h + r];
      out.scale[h][i] = half_at(p + l.kScaleAt, r) * static_cast<float>(both & 15);
      out.min[h][i] = -(half_at(p + l.kMinAt, r) * static_cast<float>(both >> 4));
    });
}
template <typename G>
void unpack(LayoutQ3_K l, const uint8_t* p, const uint8_t* group, int g, G& out) {
  fill(out, [&](int k, int r) { return (pair(group, k, r) | bit(group + 64, k, r) << 2) - 4; });
  each_row(out, [&](int i, int r) {
    const Six s = six(p + l.kSixAt, g, r);
    out.scale[0][i] = half_at(p + l.kScaleAt, r) * static_cast<float>(s.u - 32);
    out.scale[1][i] = half_at(p + l.kScaleAt, r) * static_cast<float>(s.v - 32);
  });
}
template <typename L, typename G>
void unpack_scale_min(L l, const uint8_t* p, int g, G& out) {
  each_row(out, [&](int i, int r) {
    const Six s = six(p + l.kSixAt, g, r);
    out.scale[0][i] = half_at(p + l.kScaleAt, r) * static_cast<float>(s.u);
    out.min[0][i] = -(half_at(p + l.kMinAt, r) * static_cast<float>(s.v));
  });
}
template <typename G>
void unpack(LayoutQ4_K l, const uint8_t* p, const uint8_t* group, int g, G& out) {
  fill(out, [&](int k, int r) { return nibble(group, k, r); });
  unpack_scale_min(l, p, g, out);
}
template <typename G>
void unpack(LayoutQ5_K l, const uint8_t* p, const uint8_t* group, int g, G& out) {
  fill(out, [&](int k, int r) { return nibble(group, k, r) | bit(group + 128, k, r) << 4; });
  unpack_scale_min(l, p, g, out);
}
template <typename G>
void unpack(LayoutQ6_K l, const uint8_t* p, const uint8_t* group, int g, G& out) {
  fill(out, [&](int k, int r) { return (nibble(group, k, r) | pair(group + 128, k, r) << 4) - 32; });
  for (int h = 0; h < 2; ++h)
    each_row(out, [&](int i, int r) {
      const int s = static_cast<int8_t>(p[l.kBytesAt + 16 * g + 8 * h + r]);
      out.scale[h][i] = half_at(p + l.kScaleAt, r) * static_cast<float>(s);
    });
}
template <typename G>
void unpack(LayoutIQ4_XS l, const uint8_t* p, const uint8_t* group, int g, G& out) {
  fill(out, [&](int k, int r) { return kTableIQ4[nibble(group, k, r)]; });
  each_row(out, [&](int i, int r) {
    const int low = (p[l.kLowAt + 8 * (g % 4) + r] >> (g < 4 ? 0 : 4)) & 15, top = (p[l.kTopAt + 8 * (g % 2) + r] >> (2 * (g / 2))) & 3;
    out.scale[0][i] = half_at(p + l.kScaleAt, r) * static_cast<float>((low | top << 4) - 32);
  });
}

// One token, one group: the formula that every ISA repeats, lane by lane.
template <typename L>
void multiply_group(const Group<kRowTile>& w, const int8_t* codes, float scale, int32_t sums, float* acc) {
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

template <typename L, typename G>
void unpack_at(const uint8_t* data, const TileSpan& span, int64_t g, G& out) {
  const int64_t super = g / L::kGroups, in = g % L::kGroups;
  const uint8_t *head = data + span.head + super * span.step, *group = data + span.group + super * span.step + in * span.group_step;
  unpack(L{}, head, group, static_cast<int>(in), out);
}

template <typename L>
void multiply_tile(const uint8_t* data, const TileSpan& span, int64_t groups, const TokenTile& a, float (*acc)[kRowTile]) {
  Group<kRowTile> w;
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
  const int64_t groups = w.columns / kGroup;
  const TileSpan span = tile_span<L>(row / kRowTile, w.rows, w.columns);
  Group<1> group;
  group.first = static_cast<int>(row % kRowTile);
  for (int64_t g = 0; g < groups; ++g) {
    unpack_at<L>(w.data, span, g, group);
    for (int k = 0; k < kGroup; ++k) {
      const int h = L::kHalves == 2 ? k / 16 : 0;
      const float scaled = group.scale[h][0] * static_cast<float>(group.codes[k][0]);
      out[g * kGroup + k] = L::kMin ? scaled + group.min[h][0] : scaled;
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
