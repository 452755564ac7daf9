// Micro-benchmark of attention through the native program: prompts, generation, batched decode and shared prefixes, layer after
// layer with a cache each. Prints the least time of a layer; asserts nothing.
//
// usage: attention_bench [CASE|all] [ISA|best] [THREADS] [KV: f32|bf16|f16|int8|int4] [REPEATS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "program.h"

namespace {

using namespace ridgeline;

constexpr int64_t kVocab = 64, kBlock = 16;

struct Shape {
  const char* name;
  int64_t layers, heads, kv_heads, dim, window;
};

constexpr Shape kSmollm{"smollm2-135m", 30, 9, 3, 64, 0}, kSmollm4{"smollm2, 4 layers", 4, 9, 3, 64, 0},
    kLlama{"llama-1b", 16, 32, 8, 64, 0}, kGemma{"gemma3-270m", 18, 4, 1, 256, 512}, kQwen{"qwen2-0.5b", 24, 14, 2, 64, 0};

struct Case {
  const char* name;
  Shape shape;
  int64_t spans, past, count, shared;
  bool walk;  // the spans' first `shared` tokens lie in the same blocks; walk: and are walked together
};

constexpr Case kCases[] = {
    {"prompt", kSmollm, 1, 0, 512, 0, false},
    {"prompt-llama", kLlama, 1, 0, 512, 0, false},
    {"prompt-gemma", kGemma, 1, 0, 512, 0, false},
    {"generate-64", kSmollm, 1, 63, 1, 0, false},
    {"generate-544", kSmollm, 1, 543, 1, 0, false},
    {"generate-llama", kLlama, 1, 543, 1, 0, false},
    {"generate-gemma", kGemma, 1, 543, 1, 0, false},
    {"generate-qwen", kQwen, 1, 543, 1, 0, false},
    {"generate-4k", kSmollm, 1, 4095, 1, 0, false},
    {"batch", kSmollm, 32, 191, 1, 0, false},
    {"batch-llama", kLlama, 32, 191, 1, 0, false},
    {"batch-gemma", kGemma, 32, 191, 1, 0, false},
    {"mixed", kSmollm, 8, 191, 32, 0, false},
    {"long-batch", kSmollm4, 16, 3999, 1, 0, false},
    {"chunk", kSmollm, 1, 3000, 16, 0, false},
    {"prefix-apart", kSmollm, 32, 1023, 1, 768, false},
    {"prefix-shared", kSmollm, 32, 1023, 1, 768, true},
    {"prefix-parted", kSmollm, 32, 1111, 1, 992, true},
    {"prefix-segment", kSmollm, 32, 1111, 1, 768, true},
};

struct Bench {
  Bench(const Case& c, const ProgramOptions& options) : what(c), program(std::make_unique<Program>(options)), rng(5) {
    const Shape& s = c.shape;
    const auto rows = [this](int64_t width) {
      std::normal_distribution<float> normal(0.0f, 1.0f);
      std::vector<float> x(static_cast<size_t>(kVocab * width));
      for (float& v : x) v = normal(rng);
      const int weight = program->add_weight(Encoding::kF32, kVocab, width);
      program->pack_weight(weight, 0, kVocab, reinterpret_cast<const uint8_t*>(x.data()), width * 4);
      const int buffer = program->add_buffer(width, false);
      program->add_embed(buffer, weight, 1.0f);
      return buffer;
    };
    const int q = rows(s.heads * s.dim), k = rows(s.kv_heads * s.dim), v = rows(s.kv_heads * s.dim);
    out = program->add_buffer(s.heads * s.dim, false);
    per_span = (c.past + c.count + kBlock - 1) / kBlock;
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      const int cache = program->add_cache(0, c.spans * per_span, s.kv_heads, s.dim, s.dim, s.window, false);
      program->add_cache_write(cache, k, v);
      program->add_attend(out, q, cache, s.heads, 0.125f, 0.0f);
    }
    program->finish();
    program->fill_kv(0x3c);  // some finite number in every dtype
    make_step();
  }

  void make_step() {
    std::vector<int32_t> blocks(static_cast<size_t>(what.spans * per_span));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    if (what.spans > 1) std::shuffle(blocks.begin(), blocks.end(), rng);
    tables.resize(static_cast<size_t>(what.spans));
    step.tables.resize(1);
    for (int64_t i = 0; i < what.spans; ++i) {
      std::vector<int32_t>& table = tables[static_cast<size_t>(i)];
      table.assign(blocks.begin() + i * per_span, blocks.begin() + (i + 1) * per_span);
      std::copy_n(blocks.begin(), what.shared / kBlock, table.begin());
      step.tables[0].push_back({table.data(), per_span});
      step.spans.push_back({what.past, what.count, 0});
    }
    step.rows = what.spans * what.count;
    for (int64_t t = 0; t < step.rows; ++t) tokens.push_back(static_cast<int32_t>(t * 7 % kVocab));
    step.tokens = tokens.data();
    if (!what.walk) return;
    step.shared.push_back({{}, what.shared});
    for (int64_t i = 0; i < what.spans; ++i) step.shared[0].spans.push_back(static_cast<int32_t>(i));
  }

  void run(int repeats) {
    program->set_timing(true);
    std::vector<int64_t> least(static_cast<size_t>(program->instructions()), INT64_MAX);
    InstructionStats one;
    for (int r = 0; r < repeats; ++r) {
      program->reset_stats();
      program->forward(step);
      for (int64_t i = 0; i < program->instructions(); ++i) {
        if (program->instruction_label(i) != "attend") continue;
        one = program->stats(i);
        least[static_cast<size_t>(i)] = std::min(least[static_cast<size_t>(i)], one.nanoseconds);
      }
    }
    int64_t total = 0, count = 0;
    for (const int64_t ns : least) {
      if (ns != INT64_MAX) total += ns, ++count;
    }
    double sum = 0;  // of the last layer's outputs: the same for any kernel that does the same sums
    for (int64_t i = 0; i < step.rows * what.shape.heads * what.shape.dim; ++i) sum += program->buffer(out)[i];
    const double us = static_cast<double>(total) / static_cast<double>(count) * 1e-3;
    std::printf("%-15s %-13s %9.2f us a layer  %7.1f GB/s  %7.1f GF/s  outputs %.9g\n", what.name, what.shape.name, us,
                static_cast<double>(one.bytes) / us * 1e-3, static_cast<double>(one.flops) / us * 1e-3, sum);
    std::fflush(stdout);
  }

  Case what;
  std::unique_ptr<Program> program;
  std::mt19937 rng;
  int out = -1;
  int64_t per_span = 0;
  std::vector<std::vector<int32_t>> tables;
  std::vector<int32_t> tokens;
  StepView step;
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* absent) { return std::string(argc > i ? argv[i] : absent); };
  const std::string name = argument(1, "all"), isa = argument(2, "best"), kv = argument(4, "bf16");
  ProgramOptions options;
  options.isa = best_isa();
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i) {
    if (isa == isa_name(static_cast<Isa>(i))) options.isa = static_cast<Isa>(i);
  }
  options.threads = std::atoi(argument(3, "2").c_str());
  options.block_size = kBlock;
  const std::vector<std::string> dtypes{"f32", "bf16", "f16", "int8", "int4"};
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (kv == dtypes[i]) options.k_dtype = options.v_dtype = static_cast<KvDtype>(i);
  }
  const int repeats = std::atoi(argument(5, "20").c_str());
  for (const Case& c : kCases) {
    if (name == "all" || name == c.name) Bench(c, options).run(repeats);
  }
  return 0;
}
