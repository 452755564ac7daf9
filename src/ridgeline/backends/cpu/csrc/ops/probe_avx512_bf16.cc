#if defined(__x86_64__)
#include <immintrin.h>

#include <initializer_list>

#include "ops/probe.h"

namespace ridgeline {

double bf16_pairs_avx512(int64_t rounds);

// Two products a lane and one sum chain per register; the asm stops the compiler from merging or dropping iterations.
double bf16_pairs_avx512(int64_t rounds) {
  const __m512bh w = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
  __m512 a = _mm512_set1_ps(0.5f), b = a, c = a, d = a, e = a, f = a, g = a, h = a, k = a, l = a, m = a, n = a;
  for (int64_t i = 0; i < rounds; i++) {
    for (__m512* v : {&a, &b, &c, &d, &e, &f, &g, &h, &k, &l, &m, &n}) {
      *v = _mm512_dpbf16_ps(*v, w, w);
      asm volatile("" : "+v"(*v));
    }
  }
  return double(rounds) * 12 * 64;
}

}  // namespace ridgeline
#endif
