// A small random model through the native program, in several schedules: same bits, no read or write outside its memory (the
// sanitizer build watches), on every instruction set of this CPU.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace ridgeline;

namespace {

constexpr int64_t kVocab = 53, kDim = 40, kHeads = 3, kFfn = 72, kBlocks = 90;

std::vector<float> random_floats(std::mt19937& rng, int64_t n, float size) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(rng);
  return values;
}

int add_matrix(Program& p, std::mt19937& rng, int64_t rows, int64_t columns) {
  const std::vector<float> w = random_floats(rng, rows * columns, 1.0f / std::sqrt(static_cast<float>(columns)));
  const int weight = p.add_weight(Encoding::kF32, rows, columns);
  p.pack_weight(weight, 0, rows, reinterpret_cast<const uint8_t*>(w.data()), columns * 4);
  return weight;
}

struct Model {
  std::unique_ptr<Program> program;
  int logits;
};

// Two layers, one with a window: grouped heads, rope on part of a head, softcap; buffers are not reused.
Model make(const ProgramOptions& options, int64_t head_dim) {
  std::mt19937 rng(7);
  Model m{std::make_unique<Program>(options), -1};
  Program& p = *m.program;
  const auto buffer = [&p](int64_t width, bool selected = false) { return p.add_buffer(width, selected); };
  const int embed = add_matrix(p, rng, kVocab, kDim);
  int x = buffer(kDim);
  p.add_embed(x, embed, 1.5f);
  const int rope = p.add_rope_table({1.0, 0.1, 0.01, 0.001}, 1.1);
  for (int layer = 0; layer < 2; ++layer) {
    const int cache = p.add_cache(layer, kBlocks, 1, head_dim, head_dim, layer == 0 ? 0 : 9, false);
    const int normed = buffer(kDim), q = buffer(kHeads * head_dim), k = buffer(head_dim), v = buffer(head_dim),
              out = buffer(kHeads * head_dim);
    const int norm = p.add_vector(random_floats(rng, kDim, 1.0f));
    p.add_norm(normed, x, norm, kDim, 1e-5f, 1);
    const int bias = p.add_vector(random_floats(rng, head_dim, 0.1f));
    p.add_linear({q, k, v}, normed,
                 {add_matrix(p, rng, kHeads * head_dim, kDim), add_matrix(p, rng, head_dim, kDim), add_matrix(p, rng, head_dim, kDim)},
                 {-1, -1, bias});
    p.add_rope(q, q, rope, kHeads, head_dim);
    p.add_rope(k, k, rope, 1, head_dim);
    p.add_cache_write(cache, k, v);
    p.add_attend(out, q, cache, kHeads, 0.25f, layer == 0 ? 0.0f : 20.0f);
    const int o = buffer(kDim), total = buffer(kDim), gate = buffer(kFfn), up = buffer(kFfn), down = buffer(kDim), next = buffer(kDim);
    p.add_linear({o}, out, {add_matrix(p, rng, kDim, kHeads * head_dim)}, {-1});
    p.add_add_norm(total, normed, x, o, norm, kDim, 1e-5f);
    p.add_linear({gate, up}, normed, {add_matrix(p, rng, kFfn, kDim), add_matrix(p, rng, kFfn, kDim)}, {-1, -1});
    p.add_gated(gate, gate, up, kFfn, ActivationKind::kSilu);
    p.add_linear({down}, gate, {add_matrix(p, rng, kDim, kFfn)}, {-1});
    p.add_add(next, total, down, kDim);
    x = next;
  }
  const int kept = buffer(kDim, true);
  m.logits = buffer(kVocab, true);
  p.add_select(kept, x, kDim);
  p.add_linear({m.logits}, kept, {embed}, {-1});
  p.finish();
  p.fill_kv(0xff);
  return m;
}

// Logits of every position of one sequence, in chunks of the given sizes over and over.
std::vector<float> run(const ProgramOptions& options, int64_t head_dim, const std::vector<int32_t>& tokens,
                       const std::vector<int64_t>& sizes) {
  const Model m = make(options, head_dim);
  std::vector<int32_t> table(kBlocks);
  for (int64_t i = 0; i < kBlocks; ++i) table[static_cast<size_t>(i)] = static_cast<int32_t>((i * 37 + 11) % kBlocks);
  std::vector<float> logits;
  int64_t past = 0;
  for (size_t k = 0; past < static_cast<int64_t>(tokens.size()); ++k) {
    StepView step;
    const int64_t count = std::min<int64_t>(sizes[k % sizes.size()], static_cast<int64_t>(tokens.size()) - past);
    step.spans.push_back({past, count, count});
    step.tokens = tokens.data() + past;
    step.rows = count;
    step.tables.assign(2, {{table.data(), kBlocks}});
    m.program->forward(step);
    const float* rows = m.program->buffer(m.logits);
    logits.insert(logits.end(), rows, rows + count * kVocab);
    past += count;
  }
  return logits;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 &&
         std::all_of(a.begin(), a.end(), [](float x) { return std::isfinite(x); });
}

// Schedules, block sizes and thread counts that do not give the bits of a whole prompt on one thread.
int compare(ProgramOptions options, int64_t head_dim, const std::vector<int32_t>& tokens) {
  int failures = 0;
  const std::vector<float> whole = run(options, head_dim, tokens, {300});
  for (const int64_t block_size : {16, 5, 32}) {
    for (const int threads : {1, 3}) {
      options.block_size = block_size;
      options.threads = threads;
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{300}, std::vector<int64_t>{1, 50, 7, 16, 2}}) {
        if (same(whole, run(options, head_dim, tokens, sizes))) continue;
        std::printf("FAILED: %s, dtypes %d and %d, head dim %d, block size %d, %d threads, first chunk %d\n", isa_name(options.isa),
                    static_cast<int>(options.k_dtype), static_cast<int>(options.v_dtype), static_cast<int>(head_dim),
                    static_cast<int>(block_size), threads, static_cast<int>(sizes[0]));
        ++failures;
      }
    }
  }
  return failures;
}

}  // namespace

int main() {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 300; ++i) tokens.push_back(i * 17 % static_cast<int32_t>(kVocab));
  int failures = 0;
  for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
    using Pair = std::pair<KvDtype, KvDtype>;
    for (const auto& [k_dtype, v_dtype] :
         {Pair{KvDtype::kF32, KvDtype::kF32}, Pair{KvDtype::kBF16, KvDtype::kBF16}, Pair{KvDtype::kF16, KvDtype::kF16},
          Pair{KvDtype::kInt8, KvDtype::kInt8}, Pair{KvDtype::kInt4, KvDtype::kInt4}, Pair{KvDtype::kInt8, KvDtype::kInt4}}) {
      for (const int64_t head_dim : {20, 48, 64}) {  // lanes left over, none, and whole groups of int4
        ProgramOptions options;
        options.isa = static_cast<Isa>(isa);
        options.k_dtype = k_dtype;
        options.v_dtype = v_dtype;
        failures += compare(options, head_dim, tokens);
      }
    }
  }
  if (failures == 0) std::puts("program: ok");
  return failures == 0 ? 0 : 1;
}
