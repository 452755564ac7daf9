#if defined(__x86_64__)
#include <immintrin.h>

#include <initializer_list>

#include "ops/probe.h"

namespace ridgeline {

extern const ProbeKernels kProbeAvx2;

namespace {

// `keep` stops the compiler from merging or dropping iterations without touching memory.
template <typename V>
void keep(V& v) {
  asm volatile("" : "+x"(v));
}

// Four products of unsigned codes with signed ones, summed in int16 before they are widened: what a 4-bit format may do.
double int8_ops(int64_t rounds) {
  const __m256i ones = _mm256_set1_epi16(1), w = _mm256_set1_epi8(3);
  __m256i x = _mm256_set1_epi8(1), a = w, b = w, c = w, d = w;
  for (int64_t i = 0; i < rounds; i++) {
    for (__m256i* v : {&a, &b, &c, &d}) {
      __m256i p[4];
      for (__m256i& q : p) {
        keep(x);
        q = _mm256_maddubs_epi16(w, x);
      }
      __m256i sum = _mm256_add_epi16(_mm256_add_epi16(p[0], p[1]), _mm256_add_epi16(p[2], p[3]));
      *v = _mm256_add_epi32(*v, _mm256_madd_epi16(sum, ones));
      keep(*v);
    }
  }
  return double(rounds) * 4 * 4 * 64;
}

double f32_ops(int64_t rounds) {
  const __m256 x = _mm256_set1_ps(0.5f);
  __m256 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, k = x, l = x;
  for (int64_t i = 0; i < rounds; i++) {
    for (__m256* v : {&a, &b, &c, &d, &e, &f, &g, &h, &k, &l}) {
      *v = _mm256_fmadd_ps(*v, x, x);
      keep(*v);
    }
  }
  return double(rounds) * 10 * 16;
}

uint64_t read(const uint8_t* data, int64_t bytes) {
  __m256i sum[8] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) sum[k] = _mm256_xor_si256(sum[k], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * k)));
  }
  for (int k = 1; k < 8; k++) sum[0] = _mm256_xor_si256(sum[0], sum[k]);
  return uint64_t(_mm256_extract_epi64(sum[0], 0));
}

}  // namespace

const ProbeKernels kProbeAvx2 = {int8_ops, f32_ops, nullptr, read};

}  // namespace ridgeline
#endif
