#include "ops/probe.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace ridgeline {

extern const ProbeKernels kProbeAvx2, kProbeAvx512;
extern double bf16_pairs_avx512(int64_t rounds);

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kReadChunk = int64_t{1} << 20;
constexpr int64_t kCacheSet = int64_t{8} << 20;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <typename T>
void opaque(T& value) {
  asm volatile("" : "+m"(value));
}

double int8_portable(int64_t rounds) {
  constexpr int kLanes = 64;
  int8_t a[kLanes], b[kLanes];
  int32_t sum[kLanes] = {};
  for (int k = 0; k < kLanes; k++) a[k] = int8_t(k), b[k] = int8_t(3 - k);
  for (int64_t i = 0; i < rounds; i++) {
    opaque(a);
    for (int k = 0; k < kLanes; k++) sum[k] += int16_t(a[k]) * int16_t(b[k]);
    opaque(sum);
  }
  return double(rounds) * kLanes * 2;
}

double f32_portable(int64_t rounds) {
  constexpr int kLanes = 32;
  float a[kLanes], sum[kLanes] = {};
  for (int k = 0; k < kLanes; k++) a[k] = 1.0f + float(k);
  for (int64_t i = 0; i < rounds; i++) {
    for (int r = 0; r < 8; r++) {
      for (int k = 0; k < kLanes; k++) sum[k] = sum[k] * 0.5f + a[k];
    }
    opaque(sum);
  }
  return double(rounds) * 8 * kLanes * 2;
}

uint64_t read_portable(const uint8_t* data, int64_t bytes) {
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < bytes; i += 64) {
    for (int k = 0; k < 8; k++) {
      uint64_t v;
      std::memcpy(&v, data + i + 8 * k, 8);
      sum[k] ^= v;
    }
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

const ProbeKernels kProbePortable = {int8_portable, f32_portable, nullptr, read_portable};

// Memory in pages of one size; `huge` is a wish that the system may not grant.
class Region {
 public:
  Region(int64_t bytes, bool huge) : bytes_(bytes) {
    constexpr size_t kAlign = size_t{2} << 20;
    if (posix_memalign(&data_, kAlign, size_t(bytes)) != 0) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(data_, size_t(bytes), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)huge;
#endif
  }
  ~Region() { std::free(data_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  uint8_t* data() { return static_cast<uint8_t*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

// Operations (or bytes) per second of the best of several parallel runs of `chunks` calls, in about `seconds`.
template <typename F>
double best_rate(ThreadPool& pool, double seconds, int64_t chunks, double amount, F&& work) {
  double best = 0;
  auto start = Clock::now();
  do {
    auto t = Clock::now();
    pool.parallel(chunks, [&](int64_t chunk, int) { work(chunk); });
    best = std::max(best, amount / since(t));
  } while (since(start) < seconds);
  return best;
}

double compute_rate(ThreadPool& pool, double seconds, double (*ops)(int64_t)) {
  int64_t rounds = 1000;
  double amount = 0;
  for (;; rounds *= 2) {  // short calls: a run must fit between the interruptions of a busy machine
    auto t = Clock::now();
    amount = ops(rounds);
    if (since(t) > 2e-4) break;
  }
  int64_t chunks = 16 * pool.size();
  return best_rate(pool, seconds, chunks, amount * double(chunks), [&](int64_t) { ops(rounds); });
}

double read_rate(ThreadPool& pool, const ProbeKernels& kernels, double seconds, int64_t bytes, bool huge) {
  Region region(bytes, huge);
  int64_t chunk_bytes = std::min<int64_t>(kReadChunk, bytes / (2 * pool.size()) / 1024 * 1024);
  int64_t chunks = bytes / chunk_bytes;
  pool.parallel(chunks, [&](int64_t c, int) { std::memset(region.data() + c * chunk_bytes, int(c) | 1, size_t(chunk_bytes)); });
  return best_rate(pool, seconds, chunks, double(chunks * chunk_bytes), [&](int64_t c) {
    uint64_t sum = kernels.read(region.data() + c * chunk_bytes, chunk_bytes);
    opaque(sum);
  });
}

}  // namespace

const ProbeKernels& probe_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Bf16) {
    static const ProbeKernels pairs = {kProbeAvx512.int8_ops, kProbeAvx512.f32_ops, bf16_pairs_avx512, kProbeAvx512.read};
    return pairs;
  }
  if (isa == Isa::kAvx512) return kProbeAvx512;
  if (isa == Isa::kAvx2) return kProbeAvx2;
#else
  (void)isa;
#endif
  return kProbePortable;
}

Ceilings probe(ThreadPool& pool, Isa isa, double seconds, int64_t max_bytes) {
  const ProbeKernels& kernels = probe_kernels(isa);
  Ceilings found;
  const double each = 0.4 * seconds / (kernels.bf16_ops != nullptr ? 3 : 2);
  found.int8_gops = compute_rate(pool, each, kernels.int8_ops) / 1e9;
  found.f32_gflops = compute_rate(pool, each, kernels.f32_ops) / 1e9;
  found.bf16_gflops = kernels.bf16_ops != nullptr ? compute_rate(pool, each, kernels.bf16_ops) / 1e9 : found.f32_gflops;
  found.cache_gb_s = read_rate(pool, kernels, 0.1 * seconds, std::min(kCacheSet, max_bytes), true) / 1e9;
  const int64_t footprints[] = {int64_t{160} << 20, int64_t{448} << 20};
  for (int64_t bytes : footprints) {
    for (bool huge : {false, true}) {
      if (bytes > max_bytes && found.read_gb_s > 0) continue;
      found.read_gb_s = std::max(found.read_gb_s, read_rate(pool, kernels, 0.12 * seconds, std::min(bytes, max_bytes), huge) / 1e9);
    }
  }
  return found;
}

}  // namespace ridgeline
