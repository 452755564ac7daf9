// Linear kernels for AVX-512 with VNNI: vpdpbusd, two row tiles (16 output rows) per vector, one where a tile is left over.
#if defined(__AVX512VNNI__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593: its own _mm512_undefined_* headers
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "ops/linear_driver_simd.h"
#include "ops/linear_ymm.h"

namespace ridgeline {
namespace {

struct Vnni8 : Ymm {
  static constexpr bool kSigned = false;

  template <int kTerms, int kCount, bool kSignedCodes>
  __attribute__((always_inline)) static I dot(const I* c, const int8_t* x, I start = _mm256_setzero_si256()) {
    for (int i = 0; i < kCount; ++i) start = _mm256_dpbusd_epi32(start, c[i], four(x + 4 * i));
    return start;
  }
  static F power_halved(I e) {
    const I normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const I small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1))));
  }
};

struct Vnni16 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr bool kSigned = false;

  static I join(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
  static __m128i eight_bytes(const uint8_t* p, int64_t next) {
    return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                              _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + next)));
  }
  static I load(const uint8_t* p, int64_t next) { return join(Ymm::load(p, 0), Ymm::load(p + next, 0)); }
  static I bytes(const uint8_t* p, int64_t next) { return _mm512_cvtepu8_epi32(eight_bytes(p, next)); }
  static I signed_bytes(const uint8_t* p, int64_t next) { return _mm512_cvtepi8_epi32(eight_bytes(p, next)); }
  static F halves(const uint8_t* p, int64_t next) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + next));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
  }
  static I set8(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
  static I set32(int v) { return _mm512_set1_epi32(v); }
  static I table(const int8_t* t) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t))); }
  static I lookup(I table, I index) { return _mm512_shuffle_epi8(table, index); }
  static I both(I a, I b) { return _mm512_and_si512(a, b); }
  static I either(I a, I b) { return _mm512_or_si512(a, b); }
  static I differ(I a, I b) { return _mm512_xor_si512(a, b); }
  static I right(I a, int n) { return _mm512_srli_epi32(a, static_cast<unsigned>(n)); }
  static I left(I a, int n) { return _mm512_slli_epi32(a, static_cast<unsigned>(n)); }
  static I minus(I a, I b) { return _mm512_sub_epi32(a, b); }

  static F zero() { return _mm512_setzero_ps(); }
  static F floats(I a) { return _mm512_cvtepi32_ps(a); }
  static F times(F a, F b) { return _mm512_mul_ps(a, b); }
  static F negative(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static void store_floats(float* p, F v) { _mm512_storeu_ps(p, v); }

  template <int kTerms, int kCount, bool kSignedCodes>
  __attribute__((always_inline)) static I dot(const I* c, const int8_t* x, I start = _mm512_setzero_si512()) {
    for (int i = 0; i < kCount; ++i) {
      int32_t four;
      std::memcpy(&four, x + 4 * i, 4);
      start = _mm512_dpbusd_epi32(start, c[i], _mm512_set1_epi32(four));
    }
    return start;
  }
  // Two vectors of codes with the same input: one load of it serves both.
  template <int kCount>
  __attribute__((always_inline)) static void dot_two(const I* c, const I* d, const int8_t* x, I* sums) {
    for (int i = 0; i < kCount; ++i) {
      int32_t four;
      std::memcpy(&four, x + 4 * i, 4);
      const I input = _mm512_set1_epi32(four);
      sums[0] = _mm512_dpbusd_epi32(sums[0], c[i], input);
      sums[1] = _mm512_dpbusd_epi32(sums[1], d[i], input);
    }
  }
  static F power_halved(I e) {
    const I one = _mm512_set1_epi32(1), normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const I small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(small, _mm512_cmpgt_epi32_mask(e, one), normal));
  }
};

template <template <typename> class F>
const LinearKernels* kernels_of(Encoding encoding, const char* name) {
  static const LinearKernels kernels = {quantize_avx2, matmul<F, Vnni8, Vnni16>, linear_kernels_portable(encoding)->decode_row, name};
  return &kernels;
}

}  // namespace

const LinearKernels* linear_kernels_avx512(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ4_0:
      return kernels_of<FormatQ4_0>(encoding, "q4_0 avx512 vnni 16x32");
    case Encoding::kQ4_1:
      return kernels_of<FormatQ4_1>(encoding, "q4_1 avx512 vnni 16x32");
    case Encoding::kQ5_0:
      return kernels_of<FormatQ5_0>(encoding, "q5_0 avx512 vnni 16x32");
    case Encoding::kQ5_1:
      return kernels_of<FormatQ5_1>(encoding, "q5_1 avx512 vnni 16x32");
    case Encoding::kQ8_0:
      return kernels_of<FormatQ8_0>(encoding, "q8_0 avx512 vnni 16x32");
    case Encoding::kQ2_K:
      return kernels_of<FormatQ2_K>(encoding, "q2_k avx512 vnni 16x32");
    case Encoding::kQ3_K:
      return kernels_of<FormatQ3_K>(encoding, "q3_k avx512 vnni 16x32");
    case Encoding::kQ4_K:
      return kernels_of<FormatQ4_K>(encoding, "q4_k avx512 vnni 16x32");
    case Encoding::kQ5_K:
      return kernels_of<FormatQ5_K>(encoding, "q5_k avx512 vnni 16x32");
    case Encoding::kQ6_K:
      return kernels_of<FormatQ6_K>(encoding, "q6_k avx512 vnni 16x32");
    case Encoding::kIQ4_NL:
      return kernels_of<FormatIQ4_NL>(encoding, "iq4_nl avx512 vnni 16x32");
    case Encoding::kIQ4_XS:
      return kernels_of<FormatIQ4_XS>(encoding, "iq4_xs avx512 vnni 16x32");
    case Encoding::kMXFP4:
      return kernels_of<FormatMXFP4>(encoding, "mxfp4 avx512 vnni 16x32");
    default:
      return float_kernels_avx512(encoding);
  }
}

}  // namespace ridgeline
#else
#include "ops/linear_internal.h"
namespace ridgeline {
const LinearKernels* linear_kernels_avx512(Encoding) { return nullptr; }
}  // namespace ridgeline
#endif
