// The inside of a Program, shared by program*.cc.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernel_tables.h"
#include "program.h"

namespace ridgeline {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Weight {
  PackedMatrix matrix;
  MemoryPiece memory;  // of the program that packed it, and of those it was shared with
  const LinearKernels* kernels;
};

struct RopeTable {
  std::vector<double> inv_freq;
  double scale;
  int64_t positions = 0;
  std::vector<float> values;  // [positions, 2, r]: cosines, sines
};

struct CacheStore {
  KvPool pool;
  int64_t group, window;  // window 0: none
  HugeBuffer k, v;
};

struct BufferStore {
  int64_t width;
  bool selected;  // its rows are the wanted logits rows
  int64_t capacity = 0, rows = 0;
  MemoryPiece memory;  // views given to Python keep it alive after it was replaced by a larger one
  float* data() const { return memory.as<float>(); }
  size_t bytes() const { return static_cast<size_t>(capacity * width) * sizeof(float); }
};

// Work on one token row after another; runs of them share a parallel region, since none looks at another row.
struct TokenOp {
  enum Kind { kEmbed, kNorm, kAddNorm, kRope, kCacheWrite, kAdd, kMul, kScale, kSoftcap, kActivation, kGated, kSelect, kQuantize };
  Kind kind;
  int out = -1, total = -1, a = -1, b = -1;  // buffers
  int data = -1;                             // weight, vector, rope table, cache or activation slot
  int64_t width = 0;                         // of a row, a norm's slice or a head
  int64_t groups = 1;                        // slices or heads
  float factor = 0;                          // scale, eps or cap
  ActivationKind activation = ActivationKind::kSilu;
  void (*quantize)(const Activations&, int64_t, int64_t) = nullptr;
};

struct LinearMember {
  int out, weight, bias, slot;  // slot -1: reads the floats
};

struct AttendOp {
  int out, q, cache, shape;
  float scale, softcap;
};

struct Instruction {
  enum Kind { kTokens, kLinear, kAttend };
  Kind kind;
  bool selected;
  std::vector<int> ops;
  std::vector<TokenOp> token_ops;
  int x = -1;  // Linear
  std::vector<LinearMember> members;
  AttendOp attend{};
  InstructionStats stats;
};

// Quantized rows of one Linear input; used up before the next one is made.
struct ActivationSlot {
  void (*quantize)(const Activations&, int64_t, int64_t);
  int64_t columns = 0;
  MemoryPiece codes, scales, sums;
  size_t groups(int64_t rows) const { return static_cast<size_t>(rows * divide_up(columns, kGroup)); }
};

// What attention plans have in common: one plan per shape and step serves all layers of that shape.
struct AttendShape {
  int64_t heads, kv_heads, k_dim, v_dim, window, group;
  bool v_aliases_k;
  bool operator==(const AttendShape& o) const {
    return heads == o.heads && kv_heads == o.kv_heads && k_dim == o.k_dim && v_dim == o.v_dim && window == o.window && group == o.group &&
           v_aliases_k == o.v_aliases_k;
  }
};

// Query tokens walked together, over segments [begin, end).
struct TileRef {
  int64_t entry, count;  // entries of AttendPlan::tokens
  int span;              // whose block table is walked
  int64_t begin, end;
  int64_t first, last;  // keys [first, last) are seen by some of them
  int64_t partial;      // where its segments' states go, in rows; -1: the tile is walked by one task
  int64_t parts;        // tasks per KV head
  int64_t counter;      // of KV head 0, in AttendPlan::left
  bool initial;         // goes on from a shared walk
  bool keep;            // a shared walk: the state is kept, not finished
  int64_t common = 0;   // where its tokens part ways inside the last segment; 0: nowhere
};
struct TileTask {
  int tile;
  int64_t kv_head, begin, end;
};
struct AttendPhase {
  std::vector<TileRef> tiles;
  std::vector<TileTask> tasks;
  std::vector<int64_t> bundles;  // first task of each run of tasks that a worker takes at once, and the end of the last
  std::vector<int64_t> begins;   // first bundle of each worker, and the end of the last
};
struct AttendPlan {
  std::vector<int32_t> tokens;
  std::vector<const int32_t*> tables;  // of the tokens of shared walks, which come first
  AttendPhase shared, own;
  int64_t partials = 0;                          // rows of states kept apart until merged
  std::vector<int32_t> parts;                    // tasks of each (tile, KV head) walked by several tasks
  std::unique_ptr<std::atomic<int32_t>[]> left;  // how many of them are not done; whoever ends the last one merges
  int64_t flops = 0, keys = 0;                   // multiply-adds times two; (span, key) pairs read
};

constexpr size_t kWeightChunk = size_t{64} << 20;  // bytes; only what is used of it is ever touched

constexpr int64_t kOwnTokens = 8;    // for as many it is worth that each worker reads all the weights of a stretch
constexpr int64_t kPartedKeys = 16;  // a shared walk ends at a multiple of as many keys

int64_t nanoseconds_now();

struct Program::Impl {
  explicit Impl(const ProgramOptions& o);

  ProgramOptions options;
  ThreadPool pool;
  const ElementwiseKernels& rows;
  const AttentionKernels& attention;
  const KvKernels& kv;

  PieceStore weight_memory{kWeightChunk};
  std::vector<Weight> weights;
  std::vector<std::vector<float>> vectors;
  std::vector<RopeTable> ropes;
  std::vector<CacheStore> caches;
  std::vector<BufferStore> buffers;
  std::vector<ActivationSlot> slots;
  std::vector<AttendShape> shapes;
  std::vector<Instruction> program;
  int op_count = 0;
  int64_t groups = 0;
  bool finished = false, timing = false;

  // The step being run.
  const StepView* step = nullptr;
  std::vector<int32_t> positions, span_of, wanted;  // per token; wanted: token rows kept by SelectRows
  std::vector<AttendPlan> plans;                    // per shape
  int64_t slot_capacity = 0;
  std::vector<MemoryPiece> scratch;  // per worker
  HugeBuffer partials, shared_states;

  // program.cc
  void token_op(TokenOp op, bool selected);
  int slot_for(void (*quantize)(const Activations&, int64_t, int64_t), int64_t columns);
  int shape_for(const AttendShape& shape);
  // program_step.cc
  void check(const StepView& view) const;
  void check_tables(const StepView& view) const;
  void prepare(const StepView& view);
  void reserve(int64_t rows, int64_t wanted_rows);
  void grow_ropes();
  void copy_blocks();
  void run(Instruction& instruction);
  void count(Instruction& instruction, int64_t nanoseconds) const;
  int64_t row_count(bool selected) const { return selected ? static_cast<int64_t>(wanted.size()) : step->rows; }
  float* row(int buffer, int64_t i) const { return buffers[buffer].data() + i * buffers[buffer].width; }
  // program_rows.cc
  void run_tokens(const Instruction& instruction);
  void run_token_op(const TokenOp& op, int64_t first, int64_t last);
  void run_embed(const TokenOp& op, int64_t t);
  void run_rope(const TokenOp& op, int64_t t);
  void run_cache_write(const TokenOp& op, int64_t t);
  Activations activations(int slot, int x, int64_t rows, int64_t columns, int64_t first = 0, int64_t slot_row = 0) const;
  int64_t token_parts(int64_t count) const;
  static int64_t token_part(int64_t count, int64_t part, int64_t parts);
  // program_linear.cc
  void run_linear(const Instruction& instruction);
  void linear_rows(const LinearMember& member, const Activations& a, float* y, int64_t first, int64_t last) const;
  // program_stretch.cc
  size_t stretch_end(size_t first) const;
  int64_t stretch_rows() const;
  bool many_tokens() const { return step->rows >= kOwnTokens * pool.size(); }  // enough for each worker to have its own
  void run_stretch(size_t first, size_t end);
  void run_block(const Instruction& instruction, int64_t first, int64_t last, int worker);
  // program_attend.cc
  struct AttendRun;
  int64_t key_segment() const;  // kKeySegment, unless broken on purpose
  void plan_attention();
  void run_attend(const AttendOp& op);
};

}  // namespace ridgeline
