// Portable kernels for F32, F16 and BF16 weights: y[t][r] is one chain of fused multiply-adds along k.
#include <algorithm>
#include <cmath>

#include "ops/linear_internal.h"
#include "ops/linear_layout.h"

namespace ridgeline {
namespace {

struct F32 {
  static constexpr int64_t kBytes = 4;
  static float at(const uint8_t* p) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static float at(const uint8_t* p) { return f16_to_f32(load_u16(p)); }
};
struct BF16 {
  static constexpr int64_t kBytes = 2;
  static float at(const uint8_t* p) { return bf16_to_f32(load_u16(p)); }
};

template <typename W>
void matmul(const PackedMatrix& w, const Activations& a, float* y, int64_t y_stride, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row += kRowTile) {
    const TileSpan span = float_span(row / kRowTile, w.rows, w.columns, W::kBytes);
    const uint8_t* tile = w.data + span.group;
    const int64_t live = std::min<int64_t>(kRowTile, last - row);
    for (int64_t t = 0; t < a.tokens; ++t) {
      const float* x = a.values + t * a.stride;
      float acc[kRowTile] = {};
      for (int64_t k = 0; k < w.columns; ++k)
        for (int r = 0; r < kRowTile; ++r) acc[r] = std::fma(W::at(tile + k * span.step + r * W::kBytes), x[k], acc[r]);
      std::copy_n(acc, live, y + t * y_stride + row);
    }
  }
}

template <typename W>
void decode_row(const PackedMatrix& w, int64_t row, float* out) {
  const TileSpan span = float_span(row / kRowTile, w.rows, w.columns, W::kBytes);
  for (int64_t k = 0; k < w.columns; ++k) out[k] = W::at(w.data + span.group + k * span.step + row % kRowTile * W::kBytes);
}

template <typename W>
const LinearKernels* kernels_of(const char* name) {
  static const LinearKernels kernels = {quantize_portable, matmul<W>, decode_row<W>, name};
  return &kernels;
}

}  // namespace

const LinearKernels* float_kernels_portable(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return kernels_of<F32>("f32 portable 8");
    case Encoding::kF16:
      return kernels_of<F16>("f16 portable 8");
    case Encoding::kBF16:
      return kernels_of<BF16>("bf16 portable 8");
    default:
      return nullptr;
  }
}

}  // namespace ridgeline
