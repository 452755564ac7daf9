// Eight lanes of AVX2 under the names that linear_formats_simd.h uses. Include only in files compiled for AVX2 or more.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace ridgeline {
namespace {

// A lane is an output row; integer vectors hold 4 codes (consecutive k) per lane. `p` is a row tile's bytes.
// Functions take the distance to the next row tile, which only wider vectors use.
struct Ymm {
  using I = __m256i;
  using F = __m256;
  static constexpr int kLanes = 8;

  static I load(const uint8_t* p, int64_t) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static I bytes(const uint8_t* p, int64_t) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
  static I signed_bytes(const uint8_t* p, int64_t) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
  static F halves(const uint8_t* p, int64_t) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

  static I set8(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
  static I set32(int v) { return _mm256_set1_epi32(v); }
  static I table(const int8_t* t) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t))); }
  static I lookup(I table, I index) { return _mm256_shuffle_epi8(table, index); }
  static I both(I a, I b) { return _mm256_and_si256(a, b); }
  static I either(I a, I b) { return _mm256_or_si256(a, b); }
  static I differ(I a, I b) { return _mm256_xor_si256(a, b); }
  static I right(I a, int n) { return _mm256_srli_epi32(a, n); }
  static I left(I a, int n) { return _mm256_slli_epi32(a, n); }
  static I minus(I a, I b) { return _mm256_sub_epi32(a, b); }

  static F zero() { return _mm256_setzero_ps(); }
  static F floats(I a) { return _mm256_cvtepi32_ps(a); }
  static F from_bits(I a) { return _mm256_castsi256_ps(a); }
  static F times(F a, F b) { return _mm256_mul_ps(a, b); }
  static F negative(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F set(float v) { return _mm256_set1_ps(v); }
  static F load_floats(const float* p) { return _mm256_loadu_ps(p); }
  static void store_floats(float* p, F v) { _mm256_storeu_ps(p, v); }

  // Four consecutive activation codes in every lane.
  static I four(const int8_t* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
};

}  // namespace
}  // namespace ridgeline
