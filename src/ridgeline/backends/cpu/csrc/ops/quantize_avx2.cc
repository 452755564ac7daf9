// AVX2 version of quantize.cc: the same codes, scales and sums, bit for bit.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "ops/linear_internal.h"

namespace ridgeline {
#if defined(__AVX2__)
namespace {

float largest(const __m256* v) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i best = _mm256_and_si256(_mm256_castps_si256(v[0]), mask);
  for (int i = 1; i < 4; ++i) best = _mm256_max_epi32(best, _mm256_and_si256(_mm256_castps_si256(v[i]), mask));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(best), _mm256_extracti128_si256(best, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

// Writes 32 codes; returns the two half sums joined.
int32_t quantize_group(const __m256* v, float scale, int8_t* codes) {
  const __m256 s = _mm256_set1_ps(scale), high = _mm256_set1_ps(127.0f), low = _mm256_set1_ps(-127.0f);
  __m256i q[4];
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(_mm256_div_ps(v[i], s), high), low));
  const __m256i a = _mm256_packs_epi32(q[0], q[1]), b = _mm256_packs_epi32(q[2], q[3]);  // 128-bit lanes: see the order below
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i pairs = _mm256_hadd_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));  // [a a b b | a a b b]
  const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  const __m128i sums = _mm_add_epi32(half, _mm_srli_epi64(half, 32));  // lanes 0 and 2
  return join_sums(_mm_cvtsi128_si32(sums), _mm_extract_epi32(sums, 2));
}

}  // namespace

void quantize_avx2(const Activations& a, int64_t first, int64_t last) {
  const int64_t groups = group_count(a.columns);
  for (int64_t t = first; t < last; ++t) {
    const TokenTile tile = token_tile(a, t / kTokenTile * kTokenTile);
    for (int64_t g = 0; g < groups; ++g) {
      const float* x = a.values + t * a.stride + g * kGroup;
      float padded[kGroup] = {};
      if (a.columns - g * kGroup < kGroup) {
        std::memcpy(padded, x, static_cast<size_t>(a.columns - g * kGroup) * 4);
        x = padded;
      }
      const __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)};
      const int64_t at = g * tile.tokens + (t - tile.first);
      int8_t* codes = const_cast<int8_t*>(tile.codes) + at * kGroup;
      const float scale = largest(v) / 127.0f;
      const_cast<float*>(tile.scales)[at] = scale;
      if (scale != 0.0f) {
        const_cast<int32_t*>(tile.sums)[at] = quantize_group(v, scale, codes);
      } else {
        std::memset(codes, 0, kGroup);
        const_cast<int32_t*>(tile.sums)[at] = 0;
      }
    }
  }
}
#else
void quantize_avx2(const Activations& a, int64_t first, int64_t last) { quantize_portable(a, first, last); }
#endif

}  // namespace ridgeline
