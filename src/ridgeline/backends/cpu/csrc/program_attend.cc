// Planning and running attention: which query tokens are walked together, over which segments, by which task. None of these
// choices changes a bit: every row gets each segment's state alone and merges them from left to right.
#include <algorithm>
#include <cstring>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kTileBytes = 384 << 10;  // queries, scores and outputs of a tile stay in a core's second-level cache
constexpr int64_t kTasksPerWorker = 6;
constexpr int64_t kSplitRows = 64;  // tiles of more rows are never cut over segments: their states would take too much room

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t row_floats(const AttendShape& s) { return s.k_dim + 2 * v_stride(s.v_dim) + kKeySegment; }

// Largest number of rows (tokens times heads that share a KV head) of a tile.
int64_t most_rows(const AttendShape& s) {
  const int64_t group = s.heads / s.kv_heads, fit = kTileBytes / (row_floats(s) * static_cast<int64_t>(sizeof(float)));
  return std::max<int64_t>(1, std::clamp<int64_t>(fit, 48, 192) / group) * group;
}

int64_t first_key(const AttendShape& s, int64_t position) { return s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0; }

struct Planner {
  const AttendShape& shape;
  const StepView& step;
  const std::vector<int32_t>& positions;
  int workers;
  int64_t segment;
  AttendPlan& plan;
  std::vector<int64_t> walked;  // per span: segments that a shared walk covers

  int64_t group() const { return shape.heads / shape.kv_heads; }

  // Tiles of `tokens` entries each over plan.tokens[from..).
  void cut(AttendPhase& phase, int64_t from, int64_t tokens, int span, int64_t begin, bool keep, int64_t keep_end) {
    const int64_t end = static_cast<int64_t>(plan.tokens.size());
    for (int64_t entry = from; entry < end; entry += tokens) {
      TileRef tile{entry, std::min(tokens, end - entry), span, begin, keep_end, -1, begin > 0 && !keep, keep};
      if (!keep) {
        const int64_t low = positions[plan.tokens[entry]], high = positions[plan.tokens[entry + tile.count - 1]];
        tile.begin = std::max(begin, first_key(shape, low) / segment);
        tile.end = std::max(tile.begin, high / segment + 1);
      }
      phase.tiles.push_back(tile);
    }
  }

  int64_t tile_tokens(int64_t rows) const {
    const int64_t fair = divide_up(rows * shape.kv_heads, workers * kTasksPerWorker), most = most_rows(shape) / group();
    return std::clamp<int64_t>(fair, std::min<int64_t>(most, divide_up(12, group())), most);
  }

  void share() {
    walked.assign(step.spans.size(), 0);
    if (shape.window > 0 || segment != kKeySegment) return;
    std::vector<int64_t> starts{0};
    for (const SpanView& s : step.spans) starts.push_back(starts.back() + s.count);
    for (const SharedView& s : step.shared) {
      if (s.tokens == 0 || s.spans.size() < 2) continue;
      const int64_t from = static_cast<int64_t>(plan.tokens.size());
      for (const int32_t i : s.spans) {
        if (walked[i] > 0) continue;
        walked[i] = s.tokens / segment;
        for (int64_t t = 0; t < step.spans[i].count; ++t) plan.tokens.push_back(static_cast<int32_t>(starts[i] + t));
      }
      const int64_t rows = static_cast<int64_t>(plan.tokens.size()) - from;
      cut(plan.shared, from, tile_tokens(rows), s.spans.front(), 0, true, s.tokens / segment);
    }
  }

  void own() {
    int64_t token = 0;
    for (size_t i = 0; i < step.spans.size(); ++i) {
      const SpanView& s = step.spans[i];
      const int64_t from = static_cast<int64_t>(plan.tokens.size());
      for (int64_t t = 0; t < s.count; ++t) {
        plan.tokens.push_back(static_cast<int32_t>(token + t));
        plan.flops += (s.past + t + 1 - first_key(shape, s.past + t)) * shape.heads * 2 * (shape.k_dim + shape.v_dim);
      }
      plan.keys += s.past + s.count - first_key(shape, s.past);
      cut(plan.own, from, tile_tokens(step.rows), static_cast<int>(i), walked[i], false, 0);
      token += s.count;
    }
  }

  // A tile that is much longer than a fair share is cut over its segments.
  int64_t assign(AttendPhase& phase, int64_t partial_rows) {
    const auto cost = [&](const TileRef& t) { return t.count * group() * (t.end - t.begin); };
    int64_t total = 0;
    for (const TileRef& t : phase.tiles) total += cost(t) * shape.kv_heads;
    const int64_t fair = std::max<int64_t>(1, total / (workers * kTasksPerWorker));
    for (size_t i = phase.tiles.size(); i-- > 0;) {  // the longest walks are the last ones of a prompt
      TileRef& tile = phase.tiles[i];
      const int64_t segments = tile.end - tile.begin, rows = tile.count * group();
      const bool split = workers > 1 && segments > 1 && rows <= kSplitRows && cost(tile) > fair;
      const int64_t size = split ? std::max<int64_t>(1, fair / rows) : segments;
      if (split) {
        tile.partial = partial_rows;
        partial_rows += shape.kv_heads * segments * rows;
      }
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        if (split) phase.merges.push_back({static_cast<int>(i), head});
        for (int64_t begin = tile.begin; begin == tile.begin || begin < tile.end; begin += std::max<int64_t>(1, size)) {
          phase.tasks.push_back({static_cast<int>(i), head, begin, std::min(begin + size, tile.end)});
        }
      }
    }
    return partial_rows;
  }
};

// A worker's memory, cut up for a tile of `rows` rows.
struct TileMemory {
  float* q;
  int64_t* first;
  int64_t* last;
  AttentionScratch scratch;
  AttentionState part, total;

  static int64_t bytes(const AttendShape& s, int64_t rows) {
    const int64_t padded = divide_up(rows, 16) * 16;
    return (padded * (row_floats(s) + 4) + kKeyPanel * (s.k_dim + v_stride(s.v_dim))) * static_cast<int64_t>(sizeof(float)) +
           2 * padded * static_cast<int64_t>(sizeof(int64_t));
  }

  TileMemory(const AttendShape& s, int64_t rows, uint8_t* memory) {
    const int64_t padded = divide_up(rows, 16) * 16;
    first = reinterpret_cast<int64_t*>(memory);
    last = first + padded;
    float* next = reinterpret_cast<float*>(last + padded);
    const auto take = [&next](int64_t n) { return std::exchange(next, next + n); };
    scratch = {take(s.k_dim * kKeyPanel), take(kKeyPanel * v_stride(s.v_dim)), take(padded * kKeySegment)};
    part = {take(padded), take(padded), take(padded * v_stride(s.v_dim))};
    total = {take(padded), take(padded), take(padded * v_stride(s.v_dim))};
    q = take(padded * s.k_dim);
  }
};

AttentionState state_at(float* memory, int64_t all_rows, int64_t row, int64_t width) {
  return {memory + row, memory + all_rows + row, memory + 2 * all_rows + row * width};
}

}  // namespace

void Program::Impl::plan_attention() {
  int64_t worker_bytes = 0, partial_bytes = 0, shared_bytes = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const AttendShape& shape = shapes[i];
    const int64_t segment = (options.faults & kFaultBlockSegments) != 0 ? std::min(options.block_size, kKeySegment) : kKeySegment;
    plans[i] = AttendPlan();
    Planner planner{shape, *step, positions, pool.size(), segment, plans[i], {}};
    planner.share();
    planner.own();
    const int64_t state = (v_stride(shape.v_dim) + 2) * static_cast<int64_t>(sizeof(float));
    plans[i].shared_partials = planner.assign(plans[i].shared, 0);
    plans[i].own_partials = planner.assign(plans[i].own, 0);
    partial_bytes = std::max(partial_bytes, std::max(plans[i].shared_partials, plans[i].own_partials) * state);
    if (!plans[i].shared.tiles.empty()) shared_bytes = std::max(shared_bytes, step->rows * shape.heads * state);
    worker_bytes = std::max(worker_bytes, TileMemory::bytes(shape, most_rows(shape)));
  }
  const auto room = [](HugeBuffer& buffer, int64_t bytes) {
    if (static_cast<int64_t>(buffer.bytes()) < bytes) buffer = HugeBuffer(static_cast<size_t>(bytes));
  };
  for (WorkerScratch& s : scratch) room(s.memory, worker_bytes);
  room(partials, partial_bytes);
  room(shared_states, shared_bytes);
}

// Everything a task needs to know beside its tile.
struct Program::Impl::AttendRun {
  Impl& impl;
  const AttendOp& op;
  const AttendShape& shape;
  const AttendPlan& plan;
  const AttendPhase& phase;
  int64_t partial_rows;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t width() const { return v_stride(shape.v_dim); }

  AttentionTile make_tile(const TileRef& ref, int64_t kv_head, const TileMemory& memory, bool queries) const {
    const int64_t segment = (impl.options.faults & kFaultBlockSegments) != 0 ? std::min(impl.options.block_size, kKeySegment) : kKeySegment;
    for (int64_t i = 0; i < ref.count; ++i) {
      const int32_t token = plan.tokens[ref.entry + i];
      const float* q = impl.row(op.q, token) + kv_head * group() * shape.k_dim;
      for (int64_t h = 0; h < group(); ++h) {
        const int64_t r = i * group() + h;
        memory.first[r] = first_key(shape, impl.positions[token]);
        memory.last[r] = impl.positions[token] + 1;
        if (queries) impl.attention.scale(q + h * shape.k_dim, op.scale, memory.q + r * shape.k_dim, shape.k_dim);
      }
    }
    const bool split_k = (impl.options.faults & kFaultSplitK) != 0;
    const TableView& table = impl.step->tables[shape.group][ref.span];
    return {&impl.caches[op.cache].pool,
            kv_head,
            table.blocks,
            ref.count * group(),
            memory.q,
            memory.first,
            memory.last,
            op.softcap,
            segment,
            split_k};
  }

  // Copies between a tile's states and the store of shared walks, [token, head].
  void exchange(const TileRef& ref, int64_t kv_head, const AttentionState& state, bool store) const {
    for (int64_t i = 0; i < ref.count; ++i) {
      const int64_t at = plan.tokens[ref.entry + i] * shape.heads + kv_head * group();
      const AttentionState kept = state_at(impl.shared_states.as<float>(), impl.step->rows * shape.heads, at, width());
      const int64_t r = i * group();
      const auto copy = [store](float* a, float* b, int64_t n) {
        std::memcpy(store ? b : a, store ? a : b, static_cast<size_t>(n) * sizeof(float));
      };
      copy(state.largest + r, kept.largest, group());
      copy(state.sum + r, kept.sum, group());
      copy(state.out + r * width(), kept.out, group() * width());
    }
  }

  void end_tile(const TileRef& ref, const AttentionTile& tile, const AttentionState& total) const {
    if (ref.keep) return exchange(ref, tile.kv_head, total, true);
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t head = tile.kv_head * group() + r % group();
      impl.attention.finish(tile, r, total, impl.row(op.out, plan.tokens[ref.entry + r / group()]) + head * shape.v_dim);
    }
  }

  AttentionState partial(const TileRef& ref, int64_t kv_head, int64_t s) const {
    const int64_t rows = ref.count * group(), at = ref.partial + (kv_head * (ref.end - ref.begin) + s - ref.begin) * rows;
    return state_at(impl.partials.as<float>(), partial_rows, at, width());
  }

  void walk(const TileTask& task, int worker) const {
    const TileRef& ref = phase.tiles[task.tile];
    const TileMemory memory(shape, ref.count * group(), impl.scratch[worker].memory.data());
    const AttentionTile tile = make_tile(ref, task.kv_head, memory, true);
    if (ref.partial >= 0) {
      for (int64_t s = task.begin; s < task.end; ++s) impl.attention.segment(tile, s, memory.scratch, partial(ref, task.kv_head, s));
      return;
    }
    if (ref.initial) exchange(ref, task.kv_head, memory.total, false);
    for (int64_t s = ref.begin; s < ref.end; ++s) {
      const bool fresh = s == ref.begin && !ref.initial;
      impl.attention.segment(tile, s, memory.scratch, fresh ? memory.total : memory.part);
      if (!fresh) impl.attention.merge(tile, s, memory.part, memory.total);
    }
    end_tile(ref, tile, memory.total);
  }

  void join(const std::pair<int, int64_t>& which, int worker) const {
    const TileRef& ref = phase.tiles[which.first];
    const TileMemory memory(shape, ref.count * group(), impl.scratch[worker].memory.data());
    const AttentionTile tile = make_tile(ref, which.second, memory, false);
    if (ref.initial) exchange(ref, which.second, memory.total, false);
    for (int64_t s = ref.begin; s < ref.end; ++s) impl.attention.merge(tile, s, partial(ref, which.second, s), memory.total);
    end_tile(ref, tile, memory.total);
  }

  void run() const {
    impl.pool.parallel(static_cast<int64_t>(phase.tasks.size()), [this](int64_t i, int worker) { walk(phase.tasks[i], worker); });
    impl.pool.parallel(static_cast<int64_t>(phase.merges.size()), [this](int64_t i, int worker) { join(phase.merges[i], worker); });
  }
};

void Program::Impl::run_attend(const AttendOp& op) {
  const AttendShape& shape = shapes[op.shape];
  const AttendPlan& plan = plans[op.shape];
  if (!plan.shared.tiles.empty()) AttendRun{*this, op, shape, plan, plan.shared, plan.shared_partials}.run();
  AttendRun{*this, op, shape, plan, plan.own, plan.own_partials}.run();
}

}  // namespace ridgeline
