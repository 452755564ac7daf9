// Sixteen float lanes in AVX-512. Same interface as vec_portable.h.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 header starts from registers that it leaves undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstdint>

namespace ridgeline {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  static constexpr int kScoreVectors = 4;
#if defined(__AVX512BF16__)
  static constexpr bool kPairs = true;
#else
  static constexpr bool kPairs = false;
#endif
  using Reg = __m512;
  using Mask = __mmask16;

  static Mask below(int64_t n) { return n >= 16 ? Mask{0xffff} : static_cast<Mask>((1u << n) - 1u); }

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set1(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(below(n), p); }
  static void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static void store_n(float* p, Reg a, int64_t n) { _mm512_mask_storeu_ps(p, below(n), a); }
  static Reg load_bf16(const uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static Reg load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  // Half of each byte: the low one for shift 0, the high one for shift 4.
  static Reg load_u4(const uint8_t* p, int shift) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);  // looked up by the low four bits
    return _mm512_permutexvar_ps(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(shift)), numbers);
  }
#if defined(__AVX512BF16__)
  static void store_bf16(uint16_t* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
  }
  // Lane i: the bfloat16 numbers low[i] and high[i].
  static Reg pairs(const uint16_t* low, const uint16_t* high) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                           18, 2, 17, 1, 16, 0);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low))),
                                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both));
  }
  // The same of codes: whole numbers of eight bits are bfloat16 numbers, exactly.
  static Reg pairs(const int8_t* low, const int8_t* high) {
    const __m512i upper = _mm512_castps_si512(load_i8(high)), lower = _mm512_srli_epi32(_mm512_castps_si512(load_i8(low)), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(upper, lower));
  }
  static Reg keep_bits(Reg a, uint32_t bits) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(static_cast<int>(bits))));
  }
  // Per lane c plus both products, added one after the other.
  static Reg dot_pairs(Reg a, Reg b, Reg c) { return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)); }
#else
  static void store_bf16(uint16_t* p, Reg a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const Mask is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet)));
  }
#endif
  static void store_f16(uint16_t* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg fnma(Reg a, Reg b, Reg c) { return _mm512_fnmadd_ps(a, b, c); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg abs(Reg a) { return _mm512_abs_ps(a); }
  static Reg copy_sign(Reg a, Reg sign) {
    const __m512 bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign));
  }
  static Reg round(Reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg pow2(Reg n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
  }
  static Mask less(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask lanes(int64_t first, int64_t last) { return static_cast<Mask>(below(last < 0 ? 0 : last) & ~below(first < 0 ? 0 : first)); }
  static Reg select(Mask m, Reg yes, Reg no) { return _mm512_mask_blend_ps(m, no, yes); }
  static float sum(Reg a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float largest(Reg a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
};

}  // namespace
}  // namespace ridgeline
