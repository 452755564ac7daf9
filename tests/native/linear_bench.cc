// Micro-benchmark of the linear kernels beside ceilings measured in the same run. Prints medians; asserts nothing.
//
// usage: linear_bench [gemv|stream|gemm|all] [ENCODING|all] [ISA|all] [THREADS]
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "linear_ceilings.h"
#include "linear_reference.h"
#include "ops/linear_internal.h"

namespace {

using namespace ridgeline;
using namespace linear_test;

struct Huge {
  explicit Huge(size_t bytes) : size((bytes + (2u << 20) - 1) & ~((size_t{2} << 20) - 1)) {
    data = static_cast<uint8_t*>(std::aligned_alloc(2u << 20, size));
    madvise(data, size, MADV_HUGEPAGE);
    std::memset(data, 1, size);
  }
  ~Huge() { std::free(data); }
  Huge(const Huge&) = delete;
  Huge& operator=(const Huge&) = delete;
  size_t size;
  uint8_t* data;
};

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Seconds of work(thread) on all threads at once: CPU time of the slowest thread, best of `repeats`. CPU time, because other
// processes share this machine and a thread that waits for its core says nothing of the kernel.
double best_time(int threads, int repeats, const std::function<void(int)>& work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    std::vector<double> seconds(static_cast<size_t>(threads));
    auto timed = [&](int t) {
      const double start = cpu_seconds();
      work(t);
      seconds[static_cast<size_t>(t)] = cpu_seconds() - start;
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(timed, t);
    timed(0);
    for (auto& other : others) other.join();
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

double read_gb_s(int threads) {
  const Huge memory(size_t{512} << 20);
  const size_t share = memory.size / static_cast<size_t>(threads);
  const double s = best_time(threads, 7, [&](int t) { ceilings::read(memory.data + share * static_cast<size_t>(t), share); });
  return static_cast<double>(memory.size) / s / 1e9;
}

double peak_gops(int threads, double (*probe)(int64_t)) {
  const int64_t rounds = 2000000;
  double operations = 0;
  const double s = best_time(threads, 7, [&](int t) {
    const double n = probe(rounds);
    if (t == 0) operations = n;
  });
  return operations * threads / s / 1e9;
}

struct Problem {
  Problem(const Format& f, int64_t rows, int64_t columns, int64_t copies)
      : format(f),
        bytes(packed_bytes(f.encoding, rows, columns)),
        memory(static_cast<size_t>(bytes * copies)),
        rows(rows),
        columns(columns) {
    const auto file = random_rows(f, rows, columns, 5);
    pack_rows(f.encoding, file.data(), columns / f.block * f.bytes, rows, columns, 0, rows, memory.data);
    for (int64_t i = 1; i < copies; ++i) std::memcpy(memory.data + i * bytes, memory.data, static_cast<size_t>(bytes));
  }
  PackedMatrix matrix(int64_t copy) const { return {format.encoding, rows, columns, memory.data + copy * bytes}; }
  Format format;
  int64_t bytes;
  Huge memory;
  int64_t rows, columns;
};

struct Input {
  Input(int64_t tokens, int64_t columns, const LinearKernels& kernels) : x(static_cast<size_t>(tokens * columns)) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (auto& v : x) v = normal(random);
    codes.resize(x.size());
    scales.resize(x.size() / kGroup);
    sums.resize(x.size() / kGroup);
    a = {tokens, columns, x.data(), columns, codes.data(), scales.data(), sums.data()};
    kernels.quantize(a, 0, tokens);
  }
  std::vector<float> x;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Activations a;
};

// One contiguous run of rows per thread, in chunks of 64: what the program does, without its pool.
void run_matmul(const LinearKernels& k, const PackedMatrix& w, const Activations& a, float* y, int thread, int threads) {
  const int64_t chunk = 64, pairs = (w.rows + 15) / 16;
  const int64_t first = pairs * thread / threads * 16, last = std::min(w.rows, pairs * (thread + 1) / threads * 16);
  for (int64_t row = first; row < last; row += chunk) k.matmul(w, a, y, w.rows, row, std::min(last, row + chunk));
}

constexpr int64_t kShapes[][2] = {{1536, 576}, {2048, 2048}, {8192, 2048}, {2048, 8192}};  // rows, columns

void bench_gemv(const Format& f, Isa isa, int threads, double ceiling, int64_t tokens) {
  const LinearKernels& k = linear_kernels(isa, f.encoding);
  std::printf("%-7s %-8s gemv T%ld %dt", f.name, isa_name(isa), static_cast<long>(tokens), threads);
  for (const auto& shape : kShapes) {
    if (f.block == 256 && shape[1] % 256 != 0) continue;
    const int64_t bytes = packed_bytes(f.encoding, shape[0], shape[1]), copies = std::max<int64_t>(1, (int64_t{128} << 20) / bytes);
    const Problem p(f, shape[0], shape[1], copies);
    const Input input(tokens, shape[1], k);
    std::vector<float> y(static_cast<size_t>(shape[0] * tokens));
    const double s = best_time(threads, 5, [&](int t) {
      for (int64_t i = 0; i < copies; ++i) run_matmul(k, p.matrix(i), input.a, y.data(), t, threads);
    });
    const double rate = static_cast<double>(bytes * copies) / s / 1e9;
    std::printf("  %ldx%ld %.1f GB/s %2.0f%%", static_cast<long>(shape[0]), static_cast<long>(shape[1]), rate, 100 * rate / ceiling);
  }
  std::printf("\n");
}

void bench_gemm(const Format& f, Isa isa, int threads, double ceiling, int64_t rows, int64_t columns) {
  if (columns % f.block != 0) return;
  const LinearKernels& k = linear_kernels(isa, f.encoding);
  std::printf("%-7s %-8s gemm %dt %ldx%ld", f.name, isa_name(isa), threads, static_cast<long>(rows), static_cast<long>(columns));
  const Problem p(f, rows, columns, 1);
  for (int64_t tokens : {1, 2, 4, 8, 16, 32, 128, 512}) {
    const Input input(tokens, columns, k);
    std::vector<float> y(static_cast<size_t>(tokens * rows));
    const int64_t repeats = std::max<int64_t>(1, int64_t{400000000} * (isa == Isa::kPortable ? 0 : 1) / (rows * columns * tokens));
    const double s = best_time(threads, 5, [&](int t) {
      for (int64_t i = 0; i < repeats; ++i) run_matmul(k, p.matrix(0), input.a, y.data(), t, threads);
    });
    const double rate = 2.0 * static_cast<double>(rows * columns * tokens * repeats) / s / 1e9;
    std::printf("  T%ld %.0f %2.0f%%", static_cast<long>(tokens), rate, 100 * rate / ceiling);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  set_float_mode();
  const std::string what = argc > 1 ? argv[1] : "all", encoding = argc > 2 ? argv[2] : "all", isa_wanted = argc > 3 ? argv[3] : "all";
  for (int threads : {1, 2}) {
    if (argc > 4 && threads != std::atoi(argv[4])) continue;
    const double read = read_gb_s(threads), fma[] = {1, peak_gops(threads, ceilings::fma_avx2), peak_gops(threads, ceilings::fma_avx512)};
    const double int8[] = {1, peak_gops(threads, ceilings::int8_avx2), peak_gops(threads, ceilings::int8_avx512)};
    std::printf("ceilings %dt: read %.1f GB/s; int8 GOPS avx2 %.0f, vnni %.0f; float32 GFLOP/s avx2 %.0f, avx512 %.0f\n", threads, read,
                int8[1], int8[2], fma[1], fma[2]);
    for (const Format& f : formats()) {
      if (encoding != "all" && encoding != f.name) continue;
      for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
        if (!isa_supported(isa) || (isa_wanted == "all" ? isa == Isa::kPortable : isa_wanted != isa_name(isa))) continue;
        const double peak = (needs_codes(f.encoding) ? int8 : fma)[static_cast<int>(isa)];
        for (int64_t tokens : {1, 2, 4, 8})
          if (what == "stream" || (what != "gemm" && tokens == 1)) bench_gemv(f, isa, threads, read, tokens);
        if (what == "gemm" || what == "all") {
          bench_gemm(f, isa, threads, peak, 1536, 576);
          bench_gemm(f, isa, threads, peak, 2048, 2048);
        }
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
