// Planning and running attention: which query tokens are walked together, over which segments, by which task. None of these
// choices changes a bit: every row gets each segment's state alone and merges them from left to right.
#include <algorithm>
#include <cstring>
#include <functional>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kTileBytes = 384 << 10;  // queries, scores and outputs of a tile stay in a core's second-level cache
constexpr int64_t kTasksPerWorker = 6;
constexpr int64_t kBundlesPerWorker = 3;  // of what is left
constexpr int64_t kSplitStates = 16384;   // a tile is not cut over segments where its states would take more rows than that
constexpr int64_t kPartedDims = 32;       // of values that can be read apart from the rest of their segment
constexpr int64_t kLeastWork = 64 << 10;  // multiply-adds worth the waking of a worker: about a microsecond

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
  int64_t segment, block_size;
  AttendPlan& plan;
  std::vector<int64_t> walked;  // per span: segments that a shared walk covers

  int64_t group() const { return shape.heads / shape.kv_heads; }

  // Tiles of `tokens` entries each over plan.tokens[from..).
  void cut(AttendPhase& phase, int64_t from, int64_t tokens, int span, int64_t begin, bool keep, int64_t keep_end) {
    const int64_t end = static_cast<int64_t>(plan.tokens.size());
    for (int64_t entry = from; entry < end; entry += tokens) {
      TileRef tile{entry, std::min(tokens, end - entry), span, begin, keep_end, 0, keep_end * segment, -1, 1, 0, begin > 0 && !keep, keep};
      if (!keep) {
        tile.first = std::max(begin * segment, first_key(shape, positions[plan.tokens[entry]]));
        tile.last = positions[plan.tokens[entry + tile.count - 1]] + 1;
        tile.begin = tile.first / segment;
        tile.end = std::max(tile.begin, divide_up(tile.last, segment));
      }
      phase.tiles.push_back(tile);
    }
  }

  // Of a span of `tokens` out of `all`: a tile converts its keys once for all its rows, so it is no smaller than needed to keep every
  // worker busy; tiles of few states are cut over their segments besides.
  int64_t tile_tokens(int64_t all, int64_t tokens, int64_t segments) const {
    const int64_t most = most_rows(shape) / group(), states = segments * std::min(tokens, most) * shape.heads;
    const int64_t parts = shape.kv_heads * (states <= kSplitStates ? std::max<int64_t>(1, segments) : 1);
    const int64_t fair = divide_up(all * parts, workers * kTasksPerWorker);
    const int64_t size = std::clamp<int64_t>(fair, std::min<int64_t>(most, divide_up(12, group())), most);
    return divide_up(tokens, divide_up(tokens, size));
  }

  void share() {
    walked.assign(step.spans.size(), 0);
    if (shape.window > 0 || segment != kKeySegment) return;
    std::vector<int64_t> starts{0};
    for (const SpanView& s : step.spans) starts.push_back(starts.back() + s.count);
    for (const SharedView& s : step.shared) {
      if (s.tokens == 0 || s.spans.size() < 2) continue;
      const bool parts = parts_ways(s);
      const int64_t from = static_cast<int64_t>(plan.tokens.size()), segments = s.tokens / segment + parts;
      int64_t last = 0;
      for (const int32_t i : s.spans) {
        if (walked[i] > 0 || segments == 0) continue;
        walked[i] = segments;
        last = std::max(last, step.spans[i].past + step.spans[i].count);
        for (int64_t t = 0; t < step.spans[i].count; ++t) {
          plan.tokens.push_back(static_cast<int32_t>(starts[i] + t));
          plan.tables.push_back(step.tables[shape.group][i].blocks);
        }
      }
      const int64_t tokens = static_cast<int64_t>(plan.tokens.size()) - from;
      if (tokens == 0) continue;
      const size_t first = plan.shared.tiles.size();
      cut(plan.shared, from, tile_tokens(tokens, tokens, segments), s.spans.front(), 0, true, segments);
      for (size_t i = first; parts && i < plan.shared.tiles.size(); ++i) {
        plan.shared.tiles[i].common = s.tokens;
        plan.shared.tiles[i].last = std::min(last, plan.shared.tiles[i].last);
      }
    }
  }

  // What tokens share of the segment in which they part ways is walked together too where each is a row group of one token: then every
  // row sees all of it.
  bool parts_ways(const SharedView& s) const {
    if (s.tokens % segment == 0 || block_size % kPartedKeys != 0 || shape.v_aliases_k || shape.v_dim % kPartedDims != 0) return false;
    return std::all_of(s.spans.begin(), s.spans.end(),
                       [&](int32_t i) { return step.spans[i].count == 1 && step.spans[i].past >= s.tokens && walked[i] == 0; });
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
      const int64_t first = std::max(walked[i] * segment, first_key(shape, s.past)) / segment;
      const int64_t segments = divide_up(s.past + s.count, segment) - first;
      cut(plan.own, from, tile_tokens(step.rows, s.count, segments), static_cast<int>(i), walked[i], false, 0);
      token += s.count;
    }
  }

  // Multiply-adds of a KV head's walk over segments [begin, end); reading the keys counts as one row more.
  int64_t work(const TileRef& t, int64_t begin, int64_t end) const {
    const int64_t keys = std::max<int64_t>(0, std::min(end * segment, t.last) - std::max(begin * segment, t.first));
    return (t.count * group() + 1) * keys * (shape.k_dim + shape.v_dim);
  }

  // The worker that has most likely made a tile's queries and reads its output.
  int64_t owner(const TileRef& tile) const { return ThreadPool::worker_of(step.rows, plan.tokens[tile.entry], workers); }

  // A tile that is much longer than a fair share is cut over its segments.
  void assign(AttendPhase& phase) {
    int64_t total = 0, partial_rows = 0;
    std::vector<int64_t> mine(static_cast<size_t>(workers));
    for (const TileRef& t : phase.tiles) {
      const int64_t all = work(t, t.begin, t.end) * shape.kv_heads;
      mine[static_cast<size_t>(owner(t))] += all;
      total += all;
    }
    const int64_t fair = std::max(kLeastWork, total / (workers * kTasksPerWorker));
    phase.begins.push_back(0);
    for (int worker = 0; worker < workers; ++worker) {
      const size_t first = phase.tasks.size();
      for (size_t i = phase.tiles.size(); i-- > 0;) {  // the longest walks are the last ones of a prompt
        if (owner(phase.tiles[i]) == worker) add_tasks(phase, i, fair, partial_rows);
      }
      bundle(phase, first, mine[static_cast<size_t>(worker)]);
      phase.begins.push_back(static_cast<int64_t>(phase.bundles.size()));
    }
    const std::vector<int64_t> ends(phase.begins.begin() + 1, phase.begins.end());
    if (!std::equal(ends.begin(), ends.end(), phase.begins.begin(), std::not_equal_to<int64_t>())) {
      phase.begins.clear();  // few tiles: who has none would not be woken, so they are dealt evenly
    }
    phase.bundles.push_back(static_cast<int64_t>(phase.tasks.size()));
    plan.partials = std::max(plan.partials, partial_rows);
  }

  void add_tasks(AttendPhase& phase, size_t number, int64_t fair, int64_t& partial_rows) {
    TileRef& tile = phase.tiles[number];
    const int64_t segments = tile.end - tile.begin, states = segments * tile.count * group() * shape.kv_heads;
    const int64_t all = work(tile, tile.begin, tile.end);
    int64_t size = std::max<int64_t>(1, segments);
    if (workers > 1 && segments > 1 && states <= kSplitStates && all > fair) {
      size = std::max<int64_t>(1, segments * fair / all);
      tile.parts = divide_up(segments, size);
      tile.partial = std::exchange(partial_rows, partial_rows + states);
      tile.counter = static_cast<int64_t>(plan.parts.size());
      plan.parts.insert(plan.parts.end(), static_cast<size_t>(shape.kv_heads), static_cast<int32_t>(tile.parts));
    }
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      for (int64_t part = 0; part < tile.parts; ++part) {
        const int64_t begin = tile.begin + part * size;
        phase.tasks.push_back({static_cast<int>(number), head, begin, std::min(begin + size, tile.end)});
      }
    }
  }

  // Runs of tasks from `first` on, shorter and shorter: neighbours are taken together so that a worker knows what it reads next.
  void bundle(AttendPhase& phase, size_t first, int64_t left) const {
    int64_t taken = 0, most = 0;
    for (size_t i = first; i < phase.tasks.size(); ++i) {
      const TileTask& task = phase.tasks[i];
      if (i == first || taken >= most) {
        phase.bundles.push_back(static_cast<int64_t>(i));
        taken = 0;
        most = std::max(kLeastWork, left / kBundlesPerWorker);
      }
      const int64_t now = work(phase.tiles[task.tile], task.begin, task.end);
      taken += now;
      left -= now;
    }
  }
};

// A worker's memory, cut up for a tile of `rows` rows.
struct TileMemory {
  float* q;
  int64_t* first;
  int64_t* last;
  AttentionScratch scratch;
  AttentionState part, total;

  // Of a segment in the dtype that has the most scales.
  static int64_t scale_floats(const AttendShape& s) {
    return kKeySegment * (kv_scales(KvDtype::kInt4, s.k_dim) + kv_scales(KvDtype::kInt4, s.v_dim));
  }

  static int64_t bytes(const AttendShape& s, int64_t rows) {
    const int64_t padded = divide_up(rows, 16) * 16;
    return (padded * (row_floats(s) + 4) + kKeyPanel * (s.k_dim + v_stride(s.v_dim)) + scale_floats(s)) *
               static_cast<int64_t>(sizeof(float)) +
           2 * padded * static_cast<int64_t>(sizeof(int64_t));
  }

  TileMemory(const AttendShape& s, int64_t rows, uint8_t* memory) {
    const int64_t padded = divide_up(rows, 16) * 16;
    first = reinterpret_cast<int64_t*>(memory);
    last = first + padded;
    float* next = reinterpret_cast<float*>(last + padded);
    const auto take = [&next](int64_t n) { return std::exchange(next, next + n); };
    scratch = {take(s.k_dim * kKeyPanel), take(kKeyPanel * v_stride(s.v_dim)), take(padded * kKeySegment),
               take(kKeySegment * kv_scales(KvDtype::kInt4, s.k_dim)), take(kKeySegment * kv_scales(KvDtype::kInt4, s.v_dim))};
    part = {take(padded), take(padded), take(padded * v_stride(s.v_dim))};
    total = {take(padded), take(padded), take(padded * v_stride(s.v_dim))};
    q = take(padded * s.k_dim);
  }
};

AttentionState state_at(float* memory, int64_t all_rows, int64_t row, int64_t width) {
  return {memory + row, memory + all_rows + row, memory + 2 * all_rows + row * width};
}

}  // namespace

int64_t Program::Impl::key_segment() const {
  return (options.faults & kFaultBlockSegments) != 0 ? std::min(options.block_size, kKeySegment) : kKeySegment;
}

void Program::Impl::plan_attention() {
  int64_t worker_bytes = 0, partial_bytes = 0, shared_bytes = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const AttendShape& shape = shapes[i];
    plans[i] = AttendPlan();
    Planner planner{shape, *step, positions, pool.size(), key_segment(), options.block_size, plans[i], {}};
    planner.share();
    planner.own();
    const int64_t state = (v_stride(shape.v_dim) + 2) * static_cast<int64_t>(sizeof(float));
    planner.assign(plans[i].shared);
    planner.assign(plans[i].own);
    const std::vector<int32_t>& parts = plans[i].parts;
    if (!parts.empty()) plans[i].left = std::make_unique<std::atomic<int32_t>[]>(parts.size());
    for (size_t k = 0; k < parts.size(); ++k) plans[i].left[k].store(parts[k], std::memory_order_relaxed);
    partial_bytes = std::max(partial_bytes, plans[i].partials * state);
    if (!plans[i].shared.tiles.empty()) shared_bytes = std::max(shared_bytes, step->rows * shape.heads * state);
    worker_bytes = std::max(worker_bytes, TileMemory::bytes(shape, most_rows(shape)));
  }
  const auto room = [](HugeBuffer& buffer, int64_t bytes) {
    if (static_cast<int64_t>(buffer.bytes()) < bytes) buffer = HugeBuffer(static_cast<size_t>(bytes));
  };
  if (static_cast<int64_t>(scratch.front().bytes()) < worker_bytes) {
    PieceStore store(scratch.size() * PieceStore::room(static_cast<size_t>(worker_bytes)));
    for (MemoryPiece& s : scratch) s = store.take(static_cast<size_t>(worker_bytes));
  }
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

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t width() const { return v_stride(shape.v_dim); }
  int64_t segment() const { return impl.key_segment(); }

  AttentionTile make_tile(const TileRef& ref, int64_t kv_head, const TileMemory& memory) const {
    for (int64_t i = 0; i < ref.count; ++i) {
      const int32_t token = plan.tokens[ref.entry + i];
      const float* q = impl.row(op.q, token) + kv_head * group() * shape.k_dim;
      for (int64_t h = 0; h < group(); ++h) {
        const int64_t r = i * group() + h;
        memory.first[r] = first_key(shape, impl.positions[token]);
        memory.last[r] = impl.positions[token] + 1;
        impl.attention.query(impl.caches[op.cache].pool, q + h * shape.k_dim, op.scale, memory.q + r * shape.k_dim);
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
            segment(),
            split_k,
            ref.common > 0 ? plan.tables.data() + ref.entry : nullptr,
            ref.common,
            group()};
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
    return state_at(impl.partials.as<float>(), plan.partials, at, width());
  }

  // What follows segment s of a task: its next one, or the first one of the next task of the bundle.
  AttentionAhead ahead(int64_t task, int64_t s, int64_t bundle_end) const {
    const bool same = s + 1 < phase.tasks[task].end;
    if (!same && task + 1 >= bundle_end) return {nullptr, 0, 0, 0};
    const TileTask& next = phase.tasks[same ? task : task + 1];
    const TileRef& ref = phase.tiles[next.tile];
    const int64_t from = (same ? s + 1 : next.begin) * segment();
    return {impl.step->tables[shape.group][ref.span].blocks, next.kv_head, std::max(from, ref.first), ref.last};
  }

  void walk(int64_t number, int64_t bundle_end, int worker) const {
    const TileTask& task = phase.tasks[number];
    const TileRef& ref = phase.tiles[task.tile];
    const TileMemory memory(shape, ref.count * group(), impl.scratch[worker].data());
    const AttentionTile tile = make_tile(ref, task.kv_head, memory);
    if (ref.partial >= 0) {
      for (int64_t s = task.begin; s < task.end; ++s) {
        impl.attention.segment(tile, s, ahead(number, s, bundle_end), memory.scratch, partial(ref, task.kv_head, s));
      }
      std::atomic<int32_t>& left = plan.left[ref.counter + task.kv_head];
      if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      left.store(static_cast<int32_t>(ref.parts), std::memory_order_relaxed);  // for the next layer
      return join(ref, tile, memory.total);
    }
    if (ref.initial) exchange(ref, task.kv_head, memory.total, false);
    for (int64_t s = ref.begin; s < ref.end; ++s) {
      const bool fresh = s == ref.begin && !ref.initial;
      impl.attention.segment(tile, s, ahead(number, s, bundle_end), memory.scratch, fresh ? memory.total : memory.part);
      if (!fresh) impl.attention.merge(tile, s, memory.part, memory.total);
    }
    end_tile(ref, tile, memory.total);
  }

  void join(const TileRef& ref, const AttentionTile& tile, const AttentionState& total) const {
    if (ref.initial) exchange(ref, tile.kv_head, total, false);
    for (int64_t s = ref.begin; s < ref.end; ++s) impl.attention.merge(tile, s, partial(ref, tile.kv_head, s), total);
    end_tile(ref, tile, total);
  }

  void run() const {
    impl.pool.parallel(
        static_cast<int64_t>(phase.bundles.size()) - 1,
        [this](int64_t bundle, int worker) {
          for (int64_t i = phase.bundles[bundle]; i < phase.bundles[bundle + 1]; ++i) walk(i, phase.bundles[bundle + 1], worker);
        },
        phase.begins.empty() ? nullptr : phase.begins.data());
  }
};

void Program::Impl::run_attend(const AttendOp& op) {
  const AttendShape& shape = shapes[op.shape];
  const AttendPlan& plan = plans[op.shape];
  if (!plan.shared.tiles.empty()) AttendRun{*this, op, shape, plan, plan.shared}.run();
  AttendRun{*this, op, shape, plan, plan.own}.run();
}

}  // namespace ridgeline
