// One step: check it, make room, run the instructions in order.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "program_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace {

constexpr int64_t kRopeGrowth = 512;  // positions

// The caller's floating-point mode is put back after the step.
class FloatMode {
 public:
  FloatMode() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
#endif
    set_float_mode();
  }
  ~FloatMode() {
#if defined(__x86_64__)
    _mm_setcsr(saved_);
#endif
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned saved_ = 0;
};

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

}  // namespace

int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Program::Impl::check(const StepView& view) const {
  int64_t total = 0;
  for (const SpanView& s : view.spans) {
    require(s.count >= 1 && s.past >= 0 && s.want >= 0 && s.want <= s.count, "a span needs new >= 1, past >= 0 and want in 0..new");
    require(s.past + s.count <= INT32_MAX, "a span reaches past position 2^31");
    total += s.count;
  }
  require(total == view.rows, "tokens has " + std::to_string(view.rows) + " ids, the spans need " + std::to_string(total));
  for (const Instruction& instruction : program) {
    for (const TokenOp& op : instruction.token_ops) {
      if (op.kind != TokenOp::kEmbed) continue;
      const int64_t vocab = weights[op.data].matrix.rows;
      for (int64_t t = 0; t < view.rows; ++t) {
        require(view.tokens[t] >= 0 && view.tokens[t] < vocab,
                "token id " + std::to_string(view.tokens[t]) + " is outside 0.." + std::to_string(vocab - 1));
      }
    }
  }
  check_tables(view);
  for (const SharedView& s : view.shared) {
    require(s.tokens >= 0 && s.tokens % kPartedKeys == 0, "a shared walk is not a multiple of " + std::to_string(kPartedKeys) + " keys");
    for (const int32_t i : s.spans) {
      require(i >= 0 && i < static_cast<int64_t>(view.spans.size()), "a shared walk names a span that does not exist");
      require(s.tokens <= view.spans[i].past + view.spans[i].count, "a shared walk is longer than one of its spans");
    }
  }
}

void Program::Impl::check_tables(const StepView& view) const {
  require(static_cast<int64_t>(view.tables.size()) == groups,
          "the step has " + std::to_string(view.tables.size()) + " block tables per span, the caches need " + std::to_string(groups));
  for (int64_t g = 0; g < groups; ++g) {
    int64_t blocks = INT64_MAX, window = 0;
    for (const CacheStore& c : caches) {
      if (c.group != g) continue;
      blocks = std::min(blocks, c.pool.blocks);
      window = c.window;
    }
    require(view.tables[g].size() == view.spans.size(), "a block table is missing");
    for (size_t i = 0; i < view.spans.size(); ++i) {
      const SpanView& s = view.spans[i];
      const int64_t first = window > 0 ? std::max<int64_t>(0, s.past - window + 1) / options.block_size : 0;
      const int64_t last = (s.past + s.count - 1) / options.block_size;
      const TableView& table = view.tables[g][i];
      require(table.length > last,
              "span " + std::to_string(i) + " has " + std::to_string(table.length) + " blocks, needs " + std::to_string(last + 1));
      for (int64_t b = first; b <= last; ++b) {
        require(table.blocks[b] >= 0 && table.blocks[b] < blocks,
                "block id " + std::to_string(table.blocks[b]) + " is outside 0.." + std::to_string(blocks - 1));
      }
    }
    for (const CopyView& copy : view.copies) {
      require(copy.group >= 0 && copy.group < groups, "a block copy names a cache group that does not exist");
      require(copy.group != g || (copy.src >= 0 && copy.src < blocks && copy.dst >= 0 && copy.dst < blocks),
              "a block copy is outside the pool");
    }
  }
}

void Program::Impl::reserve(int64_t count, int64_t wanted_rows) {
  bool grows = false;
  size_t all = 0;
  for (BufferStore& b : buffers) {
    b.rows = b.selected ? wanted_rows : count;
    grows = grows || b.rows > b.capacity;
    b.capacity = std::max(b.capacity, b.rows);
    all += PieceStore::room(b.bytes());
  }
  if (grows) {
    PieceStore store(all);
    for (BufferStore& b : buffers) b.memory = store.take(b.bytes());
  }
  const int64_t most = std::max({count, wanted_rows, many_tokens() ? stretch_rows() : 0});
  if (most <= slot_capacity) return;
  slot_capacity = most;
  all = 0;
  for (const ActivationSlot& s : slots) all += 3 * PieceStore::room(s.groups(most) * kGroup);
  PieceStore store(all);
  for (ActivationSlot& s : slots) {
    s.codes = store.take(s.groups(most) * kGroup);
    s.scales = store.take(s.groups(most) * sizeof(float));
    s.sums = store.take(s.groups(most) * sizeof(int32_t));
  }
}

void Program::Impl::grow_ropes() {
  int64_t need = 0;
  for (const SpanView& s : step->spans) need = std::max(need, s.past + s.count);
  for (RopeTable& table : ropes) {
    if (need <= table.positions) continue;
    const int64_t r = static_cast<int64_t>(table.inv_freq.size()), before = table.positions;
    table.positions = (need + kRopeGrowth - 1) / kRopeGrowth * kRopeGrowth;
    table.values.resize(static_cast<size_t>(table.positions * 2 * r));
    pool.parallel(table.positions - before, [&](int64_t chunk, int) {
      float* out = table.values.data() + (before + chunk) * 2 * r;
      for (int64_t i = 0; i < r; ++i) {
        // The op asks for a float32 product: an ulp of the angle moves logits by 1e-3 at position 2,000.
        const double angle = static_cast<float>(before + chunk) * static_cast<float>(table.inv_freq[i]);
        out[i] = static_cast<float>(std::cos(angle) * table.scale);
        out[r + i] = static_cast<float>(std::sin(angle) * table.scale);
      }
    });
  }
}

void Program::Impl::prepare(const StepView& view) {
  step = &view;
  positions.clear();
  span_of.clear();
  wanted.clear();
  for (size_t i = 0; i < view.spans.size(); ++i) {
    const SpanView& s = view.spans[i];
    for (int64_t t = 0; t < s.count; ++t) {
      if (t >= s.count - s.want) wanted.push_back(static_cast<int32_t>(positions.size()));
      positions.push_back(static_cast<int32_t>(s.past + t));
      span_of.push_back(static_cast<int32_t>(i));
    }
  }
  reserve(view.rows, static_cast<int64_t>(wanted.size()));
  grow_ropes();
  plan_attention();
}

void Program::Impl::copy_blocks() {
  if (step->copies.empty() || (options.faults & kFaultNoCopy) != 0) return;
  pool.parallel(static_cast<int64_t>(caches.size()), [&](int64_t c, int) {
    for (const CopyView& copy : step->copies) {
      if (copy.group == caches[c].group) copy_kv_block(caches[c].pool, copy.src, copy.dst);
    }
  });
}

void Program::Impl::run(Instruction& instruction) {
  switch (instruction.kind) {
    case Instruction::kTokens:
      return run_tokens(instruction);
    case Instruction::kLinear:
      return run_linear(instruction);
    case Instruction::kAttend:
      return run_attend(instruction.attend);
  }
}

// What the instruction has read of weights and cache, and written to the cache; rows that stay in the processor's cache are left out.
void Program::Impl::count(Instruction& instruction, int64_t nanoseconds) const {
  InstructionStats& stats = instruction.stats;
  ++stats.calls;
  stats.nanoseconds += nanoseconds;
  const int64_t count = row_count(instruction.selected);
  for (const LinearMember& m : instruction.members) {
    const PackedMatrix& w = weights[m.weight].matrix;
    if (count > 0) stats.bytes += packed_bytes(w.encoding, w.rows, w.columns);
    stats.flops += 2 * count * w.rows * w.columns;
  }
  for (const TokenOp& op : instruction.token_ops) {
    if (op.kind == TokenOp::kEmbed) {
      const PackedMatrix& w = weights[op.data].matrix;
      stats.bytes += count * (packed_bytes(w.encoding, w.rows, w.columns) / std::max<int64_t>(w.rows, 1));
    } else if (op.kind == TokenOp::kCacheWrite) {
      const KvPool& p = caches[op.data].pool;
      stats.bytes += count * p.kv_heads * (p.k_bytes() + p.v_bytes()) / p.block_size;
    }
  }
  if (instruction.kind == Instruction::kAttend) {
    const KvPool& p = caches[instruction.attend.cache].pool;
    stats.bytes += plans[instruction.attend.shape].keys * p.kv_heads * (p.k_bytes() + p.v_bytes()) / p.block_size;
    stats.flops += plans[instruction.attend.shape].flops;
  }
}

void Program::forward(const StepView& view) {
  Impl& p = *impl_;
  require(p.finished, "forward before finish");
  p.check(view);
  if (view.rows == 0) {
    p.wanted.clear();
    for (BufferStore& b : p.buffers) b.rows = 0;
    return;
  }
  const FloatMode mode;
  p.prepare(view);
  p.copy_blocks();
  for (size_t i = 0; i < p.program.size();) {
    const size_t end = p.stretch_end(i);
    if (end > i) {
      p.run_stretch(i, end);
      i = end;
      continue;
    }
    const int64_t start = p.timing ? nanoseconds_now() : 0;
    p.run(p.program[i]);
    if (p.timing) p.count(p.program[i], nanoseconds_now() - start);
    ++i;
  }
  p.step = nullptr;
}

}  // namespace ridgeline
