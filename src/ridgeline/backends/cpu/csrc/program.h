// A lowered graph: instructions over numbered buffers, packed weights and the KV pool, run by one native forward per step.
// Knows no graph and no Python: whoever builds it calls add_* once per op, in order.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "isa/isa.h"
#include "memory.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/kv.h"
#include "ops/linear.h"
#include "threads.h"

namespace ridgeline {

// Ways to be wrong on purpose, for the tests that must notice.
enum Fault : uint32_t { kFaultSplitK = 1, kFaultBlockSegments = 2, kFaultNoCopy = 4, kFaultStaleKv = 8, kFaultBlockScales = 16 };

struct ProgramOptions {
  Isa isa = Isa::kPortable;
  int threads = 1;
  int64_t block_size = 16;
  KvDtype k_dtype = KvDtype::kBF16, v_dtype = KvDtype::kBF16;
  uint32_t faults = 0;
};

struct SpanView {
  int64_t past, count, want;
};
struct TableView {
  const int32_t* blocks;
  int64_t length;
};
struct CopyView {
  int64_t group, src, dst;
};
struct SharedView {
  std::vector<int32_t> spans;
  int64_t tokens;
};

// Python's Step; arrays are borrowed for the call.
struct StepView {
  std::vector<SpanView> spans;
  const int32_t* tokens = nullptr;
  int64_t rows = 0;
  std::vector<std::vector<TableView>> tables;  // [group][span]
  std::vector<CopyView> copies;
  std::vector<SharedView> shared;
};

struct InstructionStats {
  int64_t calls = 0, nanoseconds = 0, bytes = 0, flops = 0;
};

class Program {
 public:
  explicit Program(const ProgramOptions& options);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // --- building; all return the number of what was added ---
  int add_weight(Encoding encoding, int64_t rows, int64_t columns);  // zero until its rows are packed
  // Rows [first, first + count) from file layout; both are multiples of kRowTile, or reach the end.
  void pack_weight(int weight, int64_t first, int64_t count, const uint8_t* data, int64_t row_bytes);
  int share_weight(const Program& owner, int weight);  // the same packed bytes, whichever program goes first
  int add_vector(std::vector<float> values);
  int add_rope_table(std::vector<double> inv_freq, double scale);
  int add_cache(int64_t group, int64_t blocks, int64_t kv_heads, int64_t k_dim, int64_t v_dim, int64_t window, bool v_aliases_k);
  int add_buffer(int64_t width, bool selected);

  // --- ops, in order; buffers, weights, vectors and caches by number ---
  void add_embed(int out, int weight, float scale);
  void add_norm(int out, int x, int weight, int64_t dim, float eps, int64_t groups);
  void add_add_norm(int total, int out, int a, int b, int weight, int64_t dim, float eps);
  void add_linear(const std::vector<int>& outs, int x, const std::vector<int>& weights, const std::vector<int>& biases);
  void add_rope(int out, int x, int table, int64_t heads, int64_t head_dim);
  void add_cache_write(int cache, int k, int v);
  void add_attend(int out, int q, int cache, int64_t heads, float scale, float softcap);
  void add_add(int out, int a, int b, int64_t width);
  void add_mul(int out, int a, int b, int64_t width);
  void add_scale(int out, int x, int64_t width, float factor);
  void add_softcap(int out, int x, int64_t width, float cap);
  void add_activation(int out, int x, int64_t width, ActivationKind kind);
  void add_gated(int out, int gate, int up, int64_t width, ActivationKind kind);
  void add_select(int out, int x, int64_t width);
  void finish();  // no op after this

  // --- running ---
  void forward(const StepView& step);  // throws std::invalid_argument for a step that would leave the memory of the program
  float* buffer(int number) const;     // rows of the last forward, stride buffer_width(number); null before the first
  std::shared_ptr<void> buffer_owner(int number) const;
  int64_t buffer_width(int number) const;
  int64_t buffer_rows(int number) const;
  ThreadPool& pool();

  // --- explaining ---
  void set_timing(bool on);
  int64_t instructions() const;
  const std::vector<int>& instruction_ops(int64_t i) const;  // numbers of the ops in it, in order of add_*
  std::string instruction_label(int64_t i) const;
  InstructionStats stats(int64_t i) const;
  void reset_stats();
  std::string weight_kernel(int weight) const;
  std::string kernel_names() const;
  int64_t weight_bytes() const;
  int64_t kv_bytes() const;
  int64_t arena_bytes() const;
  void fill_kv(uint8_t byte);  // tests: 0xff makes every slot NaN in all dtypes
  void fill_block(int64_t group, int64_t block, uint8_t byte);
  bool block_holds_only(int64_t group, int64_t block, uint8_t byte) const;
  uint64_t weights_checksum() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ridgeline
