// Kernels for F32, F16 and BF16 weights with AVX-512: 32 rows x 8 tokens in registers.
#if defined(__AVX512F__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593: its own _mm512_undefined_* headers
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "ops/linear_float_simd.h"

namespace ridgeline {
namespace {

// kVectors_ vectors of eight rows; kTokens_ accumulators each fit the registers.
template <int kVectors_, int kTokens_>
struct Eights {
  using F = __m256;
  static constexpr int kLanes = 8, kVectors = kVectors_, kTokens = kTokens_;
  static constexpr int64_t kWidenAbove = 16;  // tokens that share a group of weights converted to float32 once
  static F f32(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static F f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static F bf16(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F set(float v) { return _mm256_set1_ps(v); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
};

struct Sixteens {
  using F = __m512;
  static constexpr int kLanes = 16, kVectors = 1, kTokens = 8;
  static constexpr int64_t kWidenAbove = 16;
  static F f32(const uint8_t* p) { return _mm512_loadu_ps(p); }
  static F f16(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static F bf16(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
};

template <Weight kWeight>
const LinearKernels* kernels_of(Encoding encoding, const char* name) {
  static const LinearKernels kernels = {quantize_avx2, float_matmul<kWeight, Eights<1, 8>, Sixteens>,
                                        float_kernels_portable(encoding)->decode_row, name};
  return &kernels;
}

}  // namespace

const LinearKernels* float_kernels_avx512(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return kernels_of<Weight::kF32>(encoding, "f32 avx512 fma 32x8");
    case Encoding::kF16:
      return kernels_of<Weight::kF16>(encoding, "f16 avx512 fma 32x8");
    case Encoding::kBF16:
      return kernels_of<Weight::kBF16>(encoding, "bf16 avx512 fma 32x8");
    default:
      return nullptr;
  }
}

}  // namespace ridgeline
#else
#include "ops/linear_internal.h"
namespace ridgeline {
const LinearKernels* float_kernels_avx512(Encoding) { return nullptr; }
}  // namespace ridgeline
#endif
