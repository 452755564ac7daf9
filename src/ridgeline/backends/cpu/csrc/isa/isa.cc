// Finds out at run time which instruction sets this CPU and its operating system offer. Knows nothing of kernels.
#include "isa/isa.h"

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#define RIDGELINE_X86 1
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace ridgeline {
namespace {

#ifdef RIDGELINE_X86
constexpr uint32_t kYmmState = 0x6;   // XCR0: SSE and AVX registers are saved on a context switch
constexpr uint32_t kZmmState = 0xe6;  // the same, with mask registers and both halves of zmm

uint32_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool bit(uint32_t word, int n) { return (word >> n) & 1; }

Isa detect() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::kPortable;
  const bool saves = bit(c, 27), avx = bit(c, 28), fma = bit(c, 12), f16c = bit(c, 29);
  if (!(saves && avx && fma && f16c)) return Isa::kPortable;
  const uint32_t state = enabled_state();
  if ((state & kYmmState) != kYmmState) return Isa::kPortable;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bit(b, 5)) return Isa::kPortable;
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && bit(c, 11);  // F, DQ, BW, VL, VNNI
  if (!avx512 || (state & kZmmState) != kZmmState) return Isa::kAvx2;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 5) ? Isa::kAvx512Bf16 : Isa::kAvx512;
}
#else
Isa detect() { return Isa::kPortable; }
#endif

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

bool isa_supported(Isa isa) { return static_cast<int>(isa) <= static_cast<int>(best_isa()); }

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "portable";
  }
}

void set_float_mode() {
#ifdef RIDGELINE_X86
  _mm_setcsr(0x1f80);
#endif
}

}  // namespace ridgeline
