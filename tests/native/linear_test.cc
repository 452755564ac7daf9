// Linear kernels of every encoding and instruction set against a double-precision reference, and against themselves bit for bit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "linear_reference.h"
#include "ops/linear_internal.h"

namespace {

using namespace ridgeline;
using namespace linear_test;

int failures = 0, checks = 0;

void check(bool good, const char* what, const Format& f, Isa isa, int64_t t, int64_t rows, int64_t columns) {
  ++checks;
  if (good) return;
  ++failures;
  if (failures < 40)
    std::printf("FAILED %s: %s %s T=%ld rows=%ld K=%ld\n", what, f.name, isa_name(isa), static_cast<long>(t), static_cast<long>(rows),
                static_cast<long>(columns));
}

struct Aligned {
  explicit Aligned(int64_t bytes) : data(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)))) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  uint8_t* data;
};

// The activations of one step and the memory behind them.
struct Step {
  Step(const std::vector<float>& x, int64_t tokens, int64_t columns, int64_t stride) {
    const int64_t groups = group_count(columns);
    codes.assign(static_cast<size_t>(tokens * groups * kGroup), 77);
    scales.assign(static_cast<size_t>(tokens * groups), -1.0f);
    sums.assign(static_cast<size_t>(tokens * groups), -1);
    a = {tokens, columns, x.data(), stride, codes.data(), scales.data(), sums.data()};
  }
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Activations a;
};

std::vector<float> random_values(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = normal(random);
  for (size_t i = 0; i + 1 < x.size(); i += 97) x[i] *= 30.0f;        // outliers
  for (size_t i = 64; i < x.size() && i < 96; ++i) x[i] = 0.0f;       // a zero group
  for (size_t i = 128; i < x.size() && i < 160; ++i) x[i] *= 1e-41f;  // a subnormal group
  return x;
}

bool same(const float* a, const float* b, int64_t n) { return std::memcmp(a, b, static_cast<size_t>(n) * 4) == 0; }

// y against double precision, within (operations + 4) * 2^-24 * sum |terms|: each fused step rounds a partial sum once.
bool within_bound(const Format& f, const std::vector<float>& w, const Activations& a, const float* y, int64_t y_stride, int64_t rows) {
  const int64_t columns = a.columns, groups = group_count(columns);
  const bool codes = needs_codes(f.encoding);
  for (int64_t t = 0; t < a.tokens; ++t) {
    const TokenTile tile = token_tile(a, t / kTokenTile * kTokenTile);
    std::vector<double> x(static_cast<size_t>(columns));
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t at = k / kGroup * tile.tokens + t - tile.first;
      x[k] = codes ? static_cast<double>(tile.scales[at]) * tile.codes[at * kGroup + k % kGroup] : a.values[t * a.stride + k];
    }
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < columns; ++k) sum += x[k] * w[r * columns + k], size += std::fabs(x[k] * w[r * columns + k]);
      // A minimum is added apart from its scaled codes: terms before they cancel are up to 16 + 1 times larger than their sum.
      const double terms = codes ? size * 4 + 1e-30 : size + 1e-30,
                   steps = codes ? 4.0 * static_cast<double>(groups) : static_cast<double>(columns);
      if (!(std::fabs(sum - y[t * y_stride + r]) <= (steps + 4) * 0x1p-24 * terms)) return false;
    }
  }
  return true;
}

void test_shape(const Format& f, Isa isa, int64_t rows, int64_t columns) {
  const LinearKernels &kernels = linear_kernels(isa, f.encoding), &portable = linear_kernels(Isa::kPortable, f.encoding);
  const int64_t row_bytes = columns / f.block * f.bytes, stride = columns + 5, y_stride = rows + 3, most = 70;
  const auto file = random_rows(f, rows, columns, static_cast<uint32_t>(rows * 31 + columns));
  const auto decoded = decode_rows(f, file, rows, columns);
  const Aligned packed(packed_bytes(f.encoding, rows, columns));
  for (int64_t r = 0; r < rows; r += kRowTile)
    pack_rows(f.encoding, file.data(), row_bytes, rows, columns, r, std::min(rows, r + kRowTile), packed.data);
  const PackedMatrix w = {f.encoding, rows, columns, packed.data};

  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r) {
    kernels.decode_row(w, r, row.data());
    check(same(row.data(), &decoded[r * columns], columns), "decode_row", f, isa, 0, rows, columns);
  }

  const auto x = random_values(most * stride, 7);
  std::vector<float> whole;
  for (int64_t tokens : {most, int64_t{33}, int64_t{17}, int64_t{16}, int64_t{9}, int64_t{8}, int64_t{7}, int64_t{6}, int64_t{5},
                         int64_t{4}, int64_t{3}, int64_t{2}, int64_t{1}}) {
    Step step(x, tokens, columns, stride), other(x, tokens, columns, stride);
    if (needs_codes(f.encoding)) {
      kernels.quantize(step.a, 0, tokens / 2);
      kernels.quantize(step.a, tokens / 2, tokens);
      portable.quantize(other.a, 0, tokens);
      const bool equal = step.codes == other.codes && step.sums == other.sums &&
                         same(step.scales.data(), other.scales.data(), static_cast<int64_t>(step.scales.size()));
      check(equal, "quantize equals portable", f, isa, tokens, rows, columns);
    }
    std::vector<float> y(static_cast<size_t>(tokens * y_stride), 12345.0f), split = y, reference = y;
    kernels.matmul(w, step.a, y.data(), y_stride, 0, rows);
    for (int64_t r = 0; r < rows;) {
      const int64_t end = std::min(rows, r + kRowTile * (1 + r / kRowTile % 3));
      kernels.matmul(w, step.a, split.data(), y_stride, r, end);
      r = end;
    }
    check(same(y.data(), split.data(), tokens * y_stride), "same for any row split", f, isa, tokens, rows, columns);
    portable.matmul(w, step.a, reference.data(), y_stride, 0, rows);
    check(same(y.data(), reference.data(), tokens * y_stride), "equals portable", f, isa, tokens, rows, columns);
    if (tokens == most) {
      check(within_bound(f, decoded, step.a, y.data(), y_stride, rows), "within bound", f, isa, tokens, rows, columns);
      whole = y;
    }
    check(same(y.data(), whole.data(), tokens * y_stride), "same for any T", f, isa, tokens, rows, columns);
  }
}

// Hostile bytes: every scale may be infinite or NaN, and so may the input. Nothing to compare: it must only return.
void test_hostile(const Format& f, Isa isa) {
  const LinearKernels& kernels = linear_kernels(isa, f.encoding);
  const int64_t rows = 9, columns = 256, row_bytes = columns / f.block * f.bytes;
  for (int fill : {0xff, 0x7c, 0x80, 0x00}) {
    const std::vector<uint8_t> file(static_cast<size_t>(rows * row_bytes), static_cast<uint8_t>(fill));
    const Aligned packed(packed_bytes(f.encoding, rows, columns));
    pack_rows(f.encoding, file.data(), row_bytes, rows, columns, 0, rows, packed.data);
    const PackedMatrix w = {f.encoding, rows, columns, packed.data};
    std::vector<float> x(3 * columns, 1.0f), y(3 * rows), row(columns);
    x[5] = INFINITY, x[columns + 9] = NAN, x[2 * columns] = 3e38f;
    Step step(x, 3, columns, columns);
    if (needs_codes(f.encoding)) kernels.quantize(step.a, 0, 3);
    kernels.matmul(w, step.a, y.data(), rows, 0, rows);
    kernels.decode_row(w, rows - 1, row.data());
    check(!std::isfinite(y[rows]), "NaN in the input reaches the output", f, isa, 3, rows, columns);
  }
}

void test_packed_size(const Format& f) {
  const int64_t rows = 64, columns = 2048, file = rows * columns / f.block * f.bytes;
  check(packed_bytes(f.encoding, rows, columns) * 100 <= file * 102, "packed size", f, Isa::kPortable, 0, rows, columns);
}

}  // namespace

int main(int argc, char** argv) {
  set_float_mode();
  for (const Format& f : formats()) {
    if (argc > 1 && std::strcmp(argv[1], f.name) != 0) continue;
    test_packed_size(f);
    for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
      if (!isa_supported(isa)) continue;
      const int before = failures;
      for (int64_t rows : {1, 7, 8, 9, 40}) {
        test_shape(f, isa, rows, 256);
        if (rows > 8) test_shape(f, isa, rows, 1024);
        if (f.block == 32) test_shape(f, isa, rows, 96);
        if (f.block == 1) test_shape(f, isa, rows, 45);
      }
      test_hostile(f, isa);
      std::printf("%-8s %-9s %s  (%s)\n", f.name, isa_name(isa), failures == before ? "ok" : "FAILED",
                  linear_kernels(isa, f.encoding).name);
    }
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
