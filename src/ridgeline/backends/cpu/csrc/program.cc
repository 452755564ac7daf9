// Building a program: weights are packed, ops become instructions, runs of row-wise ops become one instruction.
#include "program.h"

#include <algorithm>
#include <stdexcept>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kPackRows = 64;  // rows per parallel packing chunk

}  // namespace

Program::Impl::Impl(const ProgramOptions& o)
    : options(o),
      pool(o.threads),
      rows(elementwise_kernels(o.isa)),
      attention(attention_kernels(o.isa)),
      kv(kv_kernels(o.isa)),
      scratch(static_cast<size_t>(pool.size())) {}

Program::Program(const ProgramOptions& options) {
  if (!isa_supported(options.isa)) throw std::invalid_argument(std::string(isa_name(options.isa)) + " is not supported by this CPU");
  if (options.threads < 1 || options.block_size < 1) throw std::invalid_argument("threads and block_size must be at least 1");
  impl_ = std::make_unique<Impl>(options);
}

Program::~Program() = default;

int Program::add_weight(Encoding encoding, int64_t rows, int64_t columns) {
  const MemoryPiece memory = impl_->weight_memory.take(static_cast<size_t>(packed_bytes(encoding, rows, columns)));
  impl_->weights.push_back({{encoding, rows, columns, memory.data()}, memory, &linear_kernels(impl_->options.isa, encoding)});
  return static_cast<int>(impl_->weights.size()) - 1;
}

void Program::pack_weight(int weight, int64_t first, int64_t count, const uint8_t* data, int64_t row_bytes) {
  const Weight& w = impl_->weights.at(static_cast<size_t>(weight));
  const int64_t rows = w.matrix.rows, last = first + count;
  if (first < 0 || count < 0 || last > rows || first % kRowTile != 0 || (last % kRowTile != 0 && last != rows)) {
    throw std::invalid_argument("rows of a weight are packed in whole tiles");
  }
  // pack_rows counts from the matrix's first row, which need not be in memory.
  const auto* src = reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(data) - static_cast<uintptr_t>(first * row_bytes));
  impl_->pool.parallel((count + kPackRows - 1) / kPackRows, [&](int64_t chunk, int) {
    const int64_t from = first + chunk * kPackRows, to = std::min(from + kPackRows, last);
    pack_rows(w.matrix.encoding, src, row_bytes, rows, w.matrix.columns, from, to, w.memory.data());
  });
}

int Program::share_weight(const Program& owner, int weight) {
  const Weight& w = owner.impl_->weights.at(weight);
  impl_->weights.push_back({w.matrix, w.memory, &linear_kernels(impl_->options.isa, w.matrix.encoding)});
  return static_cast<int>(impl_->weights.size()) - 1;
}

int Program::add_vector(std::vector<float> values) {
  impl_->vectors.push_back(std::move(values));
  return static_cast<int>(impl_->vectors.size()) - 1;
}

int Program::add_rope_table(std::vector<double> inv_freq, double scale) {
  for (size_t i = 0; i < impl_->ropes.size(); ++i) {
    if (impl_->ropes[i].scale == scale && impl_->ropes[i].inv_freq == inv_freq) return static_cast<int>(i);
  }
  impl_->ropes.push_back({std::move(inv_freq), scale, 0, {}});
  return static_cast<int>(impl_->ropes.size()) - 1;
}

int Program::add_cache(int64_t group, int64_t blocks, int64_t kv_heads, int64_t k_dim, int64_t v_dim, int64_t window, bool v_aliases_k) {
  const ProgramOptions& o = impl_->options;
  CacheStore c{{o.k_dtype, o.v_dtype, blocks, kv_heads, k_dim, v_dim, o.block_size, v_aliases_k, nullptr, nullptr}, group, window, {}, {}};
  // A pool of huge pages would take 2 MiB per layer and head for the first token.
  c.k = HugeBuffer(static_cast<size_t>(blocks * kv_heads * c.pool.k_bytes()), true);
  c.v = HugeBuffer(static_cast<size_t>(blocks * kv_heads * c.pool.v_bytes()), true);
  c.pool.k = c.k.data();
  c.pool.v = c.v.data();
  impl_->groups = std::max(impl_->groups, group + 1);
  impl_->caches.push_back(std::move(c));
  return static_cast<int>(impl_->caches.size()) - 1;
}

int Program::add_buffer(int64_t width, bool selected) {
  BufferStore b{};
  b.width = width;
  b.selected = selected;
  impl_->buffers.push_back(std::move(b));
  return static_cast<int>(impl_->buffers.size()) - 1;
}

// Joins the instruction before it when that too works row by row on the same rows.
void Program::Impl::token_op(TokenOp op, bool selected) {
  if (program.empty() || program.back().kind != Instruction::kTokens || program.back().selected != selected) {
    Instruction next{};
    next.kind = Instruction::kTokens;
    next.selected = selected;
    program.push_back(std::move(next));
  }
  if (op.kind != TokenOp::kQuantize) program.back().ops.push_back(op_count++);
  program.back().token_ops.push_back(op);
}

int Program::Impl::slot_for(void (*quantize)(const Activations&, int64_t, int64_t), int64_t columns) {
  size_t i = 0;
  while (i < slots.size() && slots[i].quantize != quantize) ++i;
  if (i == slots.size()) {
    ActivationSlot slot{};
    slot.quantize = quantize;
    slots.push_back(std::move(slot));
  }
  slots[i].columns = std::max(slots[i].columns, columns);
  return static_cast<int>(i);
}

int Program::Impl::shape_for(const AttendShape& shape) {
  const auto found = std::find(shapes.begin(), shapes.end(), shape);
  if (found != shapes.end()) return static_cast<int>(found - shapes.begin());
  shapes.push_back(shape);
  return static_cast<int>(shapes.size()) - 1;
}

void Program::add_embed(int out, int weight, float scale) {
  TokenOp op{TokenOp::kEmbed};
  op.out = out;
  op.data = weight;
  op.width = impl_->weights.at(weight).matrix.columns;
  op.factor = scale;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_norm(int out, int x, int weight, int64_t dim, float eps, int64_t groups) {
  TokenOp op{TokenOp::kNorm};
  op.out = out;
  op.a = x;
  op.data = weight;
  op.width = dim;
  op.groups = groups;
  op.factor = eps;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_add_norm(int total, int out, int a, int b, int weight, int64_t dim, float eps) {
  TokenOp op{TokenOp::kAddNorm};
  op.out = out;
  op.total = total;
  op.a = a;
  op.b = b;
  op.data = weight;
  op.width = dim;
  op.factor = eps;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_linear(const std::vector<int>& outs, int x, const std::vector<int>& weights, const std::vector<int>& biases) {
  Instruction linear{};
  linear.kind = Instruction::kLinear;
  linear.selected = impl_->buffers.at(x).selected;
  linear.x = x;
  std::vector<int> made;
  for (size_t i = 0; i < outs.size(); ++i) {
    const Weight& w = impl_->weights.at(weights[i]);
    int slot = -1;
    if (needs_codes(w.matrix.encoding)) {
      slot = impl_->slot_for(w.kernels->quantize, w.matrix.columns);
      if (std::find(made.begin(), made.end(), slot) == made.end()) {
        TokenOp op{TokenOp::kQuantize};
        op.a = x;
        op.data = slot;
        op.width = w.matrix.columns;
        op.quantize = w.kernels->quantize;
        impl_->token_op(op, linear.selected);
        made.push_back(slot);
      }
    }
    linear.members.push_back({outs[i], weights[i], biases[i], slot});
  }
  linear.ops.push_back(impl_->op_count++);
  impl_->program.push_back(std::move(linear));
}

void Program::add_rope(int out, int x, int table, int64_t heads, int64_t head_dim) {
  TokenOp op{TokenOp::kRope};
  op.out = out;
  op.a = x;
  op.data = table;
  op.width = head_dim;
  op.groups = heads;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_cache_write(int cache, int k, int v) {
  TokenOp op{TokenOp::kCacheWrite};
  op.a = k;
  op.b = v;
  op.data = cache;
  impl_->token_op(op, false);
}

void Program::add_attend(int out, int q, int cache, int64_t heads, float scale, float softcap) {
  const CacheStore& c = impl_->caches.at(cache);
  Instruction attend{};
  attend.kind = Instruction::kAttend;
  const AttendShape shape{heads, c.pool.kv_heads, c.pool.k_dim, c.pool.v_dim, c.window, c.group, c.pool.v_aliases_k};
  attend.attend = {out, q, cache, impl_->shape_for(shape), scale, softcap};
  attend.ops.push_back(impl_->op_count++);
  impl_->program.push_back(std::move(attend));
}

void Program::add_add(int out, int a, int b, int64_t width) {
  TokenOp op{TokenOp::kAdd};
  op.out = out;
  op.a = a;
  op.b = b;
  op.width = width;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_mul(int out, int a, int b, int64_t width) {
  TokenOp op{TokenOp::kMul};
  op.out = out;
  op.a = a;
  op.b = b;
  op.width = width;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_scale(int out, int x, int64_t width, float factor) {
  TokenOp op{TokenOp::kScale};
  op.out = out;
  op.a = x;
  op.width = width;
  op.factor = factor;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_softcap(int out, int x, int64_t width, float cap) {
  TokenOp op{TokenOp::kSoftcap};
  op.out = out;
  op.a = x;
  op.width = width;
  op.factor = cap;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_activation(int out, int x, int64_t width, ActivationKind kind) {
  TokenOp op{TokenOp::kActivation};
  op.out = out;
  op.a = x;
  op.width = width;
  op.activation = kind;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_gated(int out, int gate, int up, int64_t width, ActivationKind kind) {
  TokenOp op{TokenOp::kGated};
  op.out = out;
  op.a = gate;
  op.b = up;
  op.width = width;
  op.activation = kind;
  impl_->token_op(op, impl_->buffers.at(out).selected);
}

void Program::add_select(int out, int x, int64_t width) {
  TokenOp op{TokenOp::kSelect};
  op.out = out;
  op.a = x;
  op.width = width;
  impl_->token_op(op, true);
}

void Program::finish() {
  impl_->plans.resize(impl_->shapes.size());
  impl_->finished = true;
}

}  // namespace ridgeline
