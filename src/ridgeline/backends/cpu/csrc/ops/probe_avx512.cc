#if defined(__x86_64__)
#include <immintrin.h>

#include <initializer_list>

#include "ops/probe.h"

namespace ridgeline {

extern const ProbeKernels kProbeAvx512;

namespace {

// One accumulator chain per register; `keep` stops the compiler from merging or dropping iterations without touching memory.
template <typename V>
void keep(V& v) {
  asm volatile("" : "+v"(v));
}

double int8_ops(int64_t rounds) {
  const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
  __m512i a = w, b = w, c = w, d = w, e = w, f = w, g = w, h = w;
  for (int64_t i = 0; i < rounds; i++) {
    for (__m512i* v : {&a, &b, &c, &d, &e, &f, &g, &h}) {
      *v = _mm512_dpbusd_epi32(*v, w, x);
      keep(*v);
    }
  }
  return double(rounds) * 8 * 128;
}

double f32_ops(int64_t rounds) {
  const __m512 x = _mm512_set1_ps(0.5f);
  __m512 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, k = x, l = x;
  for (int64_t i = 0; i < rounds; i++) {
    for (__m512* v : {&a, &b, &c, &d, &e, &f, &g, &h, &k, &l}) {
      *v = _mm512_fmadd_ps(*v, x, x);
      keep(*v);
    }
  }
  return double(rounds) * 10 * 32;
}

uint64_t read(const uint8_t* data, int64_t bytes) {
  __m512i sum[8] = {};
  for (int64_t i = 0; i < bytes; i += 512) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) sum[k] = _mm512_xor_si512(sum[k], _mm512_load_si512(data + i + 64 * k));
  }
  for (int k = 1; k < 8; k++) sum[0] = _mm512_xor_si512(sum[0], sum[k]);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sum[0]);
  return words[0] ^ words[7];
}

}  // namespace

const ProbeKernels kProbeAvx512 = {int8_ops, f32_ops, nullptr, read};

}  // namespace ridgeline
#endif
