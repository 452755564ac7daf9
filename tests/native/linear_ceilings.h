// What this machine can do at most: a sequential read, int8 products in the style of each instruction set, float32 FMA.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace ceilings {

inline void keep(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// The sums leave by a copy, so that the array itself can live in registers.
template <typename V, size_t n>
inline void consume(const V (&sum)[n]) {
  V copy[n];
  for (size_t i = 0; i < n; ++i) copy[i] = sum[i];
  keep(copy);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline void read(const uint8_t* p, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128)
    for (int j = 0; j < 4; ++j) sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
  keep(sum);
}

// Each probe returns the operations it did (a multiply-add counts two).
__attribute__((target("avx2"))) inline double int8_avx2(int64_t rounds) {
  __m256i x[4], sum[4] = {};
  for (int j = 0; j < 4; ++j) x[j] = _mm256_set1_epi8(static_cast<char>(j + 1));
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i w = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      asm volatile("" : "+x"(w));  // a new weight every time, as far as the compiler knows
      const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(w, x[0]), _mm256_maddubs_epi16(w, x[1]));
      const __m256i q = _mm256_add_epi16(_mm256_maddubs_epi16(w, x[2]), _mm256_maddubs_epi16(w, x[3]));
      sum[j] = _mm256_add_epi32(sum[j], _mm256_madd_epi16(_mm256_add_epi16(p, q), ones));
    }
  consume(sum);
  return static_cast<double>(rounds) * 4 * 4 * 64;
}

__attribute__((target("avx512f,avx512vnni"))) inline double int8_avx512(int64_t rounds) {
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
  __m512i sum[16];
  for (int j = 0; j < 16; ++j) sum[j] = _mm512_set1_epi32(j);  // different, or the compiler merges the chains
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) sum[j] = _mm512_dpbusd_epi32(sum[j], w, x);
  consume(sum);
  return static_cast<double>(rounds) * 16 * 128;
}

__attribute__((target("avx2,fma"))) inline double fma_avx2(int64_t rounds) {
  const __m256 a = _mm256_set1_ps(1.0f);
  __m256 sum[10];
  for (int j = 0; j < 10; ++j) sum[j] = _mm256_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (int j = 0; j < 10; ++j) sum[j] = _mm256_fmadd_ps(a, a, sum[j]);
  consume(sum);
  return static_cast<double>(rounds) * 10 * 16;
}

__attribute__((target("avx512f"))) inline double fma_avx512(int64_t rounds) {
  if (!__builtin_cpu_supports("avx512f")) return 0;
  const __m512 a = _mm512_set1_ps(1.0f);
  __m512 sum[10];
  for (int j = 0; j < 10; ++j) sum[j] = _mm512_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (int j = 0; j < 10; ++j) sum[j] = _mm512_fmadd_ps(a, a, sum[j]);
  consume(sum);
  return static_cast<double>(rounds) * 10 * 32;
}
#else
inline void read(const uint8_t* p, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += 8) sum += *reinterpret_cast<const uint64_t*>(p + i);
  keep(&sum);
}
inline double int8_avx2(int64_t) { return 0; }
inline double int8_avx512(int64_t) { return 0; }
inline double fma_avx2(int64_t) { return 0; }
inline double fma_avx512(int64_t) { return 0; }
#endif

}  // namespace ceilings
