// Linear kernels for AVX2: unsigned weight codes times signed activation codes by vpmaddubsw, eight output rows per vector.
#if defined(__AVX2__)
#include "ops/linear_driver_simd.h"
#include "ops/linear_ymm.h"

namespace ridgeline {
namespace {

struct Avx2 : Ymm {
  static constexpr bool kSigned = true;  // signed 8-bit weights use the sign trick: |w| * (sign(w) a)

  // kTerms vectors of products added in int16, as a tree written depth first: few registers are live at a time.
  template <int kTerms, bool kSignedCodes>
  __attribute__((always_inline)) static I products(const I* c, const int8_t* x) {
    if constexpr (kTerms > 1) {
      I low = products<kTerms / 2, kSignedCodes>(c, x);
      asm volatile("" : "+x"(low) : : "memory");  // keeps the compiler from loading all of x first and spilling the codes
      return _mm256_add_epi16(low, products<kTerms / 2, kSignedCodes>(c + kTerms / 2, x + 2 * kTerms));
    } else if constexpr (kSignedCodes) {
      return _mm256_maddubs_epi16(_mm256_abs_epi8(*c), _mm256_sign_epi8(four(x), *c));
    } else {
      return _mm256_maddubs_epi16(*c, four(x));
    }
  }
  // Sum over k of codes x activations: kCount vectors, kTerms products added in int16 at a time.
  template <int kTerms, int kCount, bool kSignedCodes>
  __attribute__((always_inline)) static I dot(const I* c, const int8_t* x) {
    constexpr int kStep = kTerms < kCount ? kTerms : kCount;
    const I part = _mm256_madd_epi16(products<kStep, kSignedCodes>(c, x), _mm256_set1_epi16(1));
    if constexpr (kStep == kCount) {
      return part;
    } else {
      return _mm256_add_epi32(part, dot<kTerms, kCount - kStep, kSignedCodes>(c + kStep, x + 4 * kStep));
    }
  }
  template <int kTerms, int kCount, bool kSignedCodes>
  __attribute__((always_inline)) static I dot(const I* c, const int8_t* x, I start) {
    return _mm256_add_epi32(start, dot<kTerms, kCount, kSignedCodes>(c, x));
  }
  // 2^(e - 128) of MXFP4, subnormals included.
  static F power_halved(I e) {
    const I normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const I small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1))));
  }
};

template <template <typename> class F>
const LinearKernels* kernels_of(Encoding encoding, const char* name) {
  static const LinearKernels kernels = {quantize_avx2, matmul<F, Avx2, Avx2>, linear_kernels_portable(encoding)->decode_row, name};
  return &kernels;
}

}  // namespace

const LinearKernels* linear_kernels_avx2(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ4_0:
      return kernels_of<FormatQ4_0>(encoding, "q4_0 avx2 maddubs 8x32");
    case Encoding::kQ4_1:
      return kernels_of<FormatQ4_1>(encoding, "q4_1 avx2 maddubs 8x32");
    case Encoding::kQ5_0:
      return kernels_of<FormatQ5_0>(encoding, "q5_0 avx2 maddubs 8x32");
    case Encoding::kQ5_1:
      return kernels_of<FormatQ5_1>(encoding, "q5_1 avx2 maddubs 8x32");
    case Encoding::kQ8_0:
      return kernels_of<FormatQ8_0>(encoding, "q8_0 avx2 maddubs 8x32");
    case Encoding::kQ2_K:
      return kernels_of<FormatQ2_K>(encoding, "q2_k avx2 maddubs 8x32");
    case Encoding::kQ3_K:
      return kernels_of<FormatQ3_K>(encoding, "q3_k avx2 maddubs 8x32");
    case Encoding::kQ4_K:
      return kernels_of<FormatQ4_K>(encoding, "q4_k avx2 maddubs 8x32");
    case Encoding::kQ5_K:
      return kernels_of<FormatQ5_K>(encoding, "q5_k avx2 maddubs 8x32");
    case Encoding::kQ6_K:
      return kernels_of<FormatQ6_K>(encoding, "q6_k avx2 maddubs 8x32");
    case Encoding::kIQ4_NL:
      return kernels_of<FormatIQ4_NL>(encoding, "iq4_nl avx2 maddubs 8x32");
    case Encoding::kIQ4_XS:
      return kernels_of<FormatIQ4_XS>(encoding, "iq4_xs avx2 maddubs 8x32");
    case Encoding::kMXFP4:
      return kernels_of<FormatMXFP4>(encoding, "mxfp4 avx2 maddubs 8x32");
    default:
      return float_kernels_avx2(encoding);
  }
}

}  // namespace ridgeline
#else
#include "ops/linear_internal.h"
namespace ridgeline {
const LinearKernels* linear_kernels_avx2(Encoding) { return nullptr; }
}  // namespace ridgeline
#endif
