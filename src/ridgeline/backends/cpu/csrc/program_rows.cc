// Running the row-wise instructions: each worker takes a few tokens through all ops of the run, so they stay in its cache.
#include <algorithm>
#include <cstring>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kFewTokens = 2;  // up to as many rows are not worth waking anybody

}  // namespace

// Of `rows` rows of buffer x from `first` on; what was quantized of them begins at row slot_row of the slot.
Activations Program::Impl::activations(int slot, int x, int64_t rows, int64_t columns, int64_t first, int64_t slot_row) const {
  Activations a{rows, columns, row(x, first), buffers[x].width, nullptr, nullptr, nullptr};
  if (slot >= 0) {
    const ActivationSlot& s = slots[slot];
    a.codes = s.codes.as<int8_t>() + s.groups(slot_row) * kGroup;
    a.scales = s.scales.as<float>() + s.groups(slot_row);
    a.sums = s.sums.as<int32_t>() + s.groups(slot_row);
  }
  return a;
}

// Parts of the tokens that workers keep to, one or several to a part, from op to op: what one core has written lies far from the others
// where they share no cache, and then a prompt took 1.6 times as long. Each part reads all the weights, so it must be worth that.
int64_t Program::Impl::token_parts(int64_t count) const { return std::clamp<int64_t>(count / kTokenTile, 1, pool.size()); }

// First token of a part; of the number of parts, the end.
int64_t Program::Impl::token_part(int64_t count, int64_t part, int64_t parts) {
  return std::min(count, ThreadPool::begin_of(divide_up(count, kTokenTile), part, parts) * kTokenTile);
}

void Program::Impl::run_tokens(const Instruction& instruction) {
  const int64_t count = row_count(instruction.selected);
  const int64_t size = count >= 2 * kTokenTile ? kTokenTile : kFewTokens;  // two workers in one tile would fight over its cache lines
  pool.parallel(divide_up(count, size), [&](int64_t chunk, int) {
    const int64_t first = chunk * size, last = std::min(first + size, count);
    for (const TokenOp& op : instruction.token_ops) run_token_op(op, first, last);
  });
}

void Program::Impl::run_embed(const TokenOp& op, int64_t t) {
  const Weight& w = weights[op.data];
  float* out = row(op.out, t);
  w.kernels->decode_row(w.matrix, step->tokens[t], out);
  if (op.factor != 1.0f) rows.scale(out, op.factor, out, op.width);
}

void Program::Impl::run_rope(const TokenOp& op, int64_t t) {
  const RopeTable& table = ropes[op.data];
  const int64_t r = static_cast<int64_t>(table.inv_freq.size());
  const float* cosine = table.values.data() + positions[t] * 2 * r;
  for (int64_t head = 0; head < op.groups; ++head) {
    rows.rope(row(op.a, t) + head * op.width, cosine, cosine + r, row(op.out, t) + head * op.width, op.width, r);
  }
}

void Program::Impl::run_cache_write(const TokenOp& op, int64_t t) {
  const CacheStore& cache = caches[op.data];
  const int64_t position = positions[t], size = options.block_size;
  const SpanView& span = step->spans[span_of[t]];
  if ((options.faults & kFaultStaleKv) != 0 && position == span.past && span.past > 0) return;  // broken on purpose
  const int32_t block = step->tables[cache.group][span_of[t]].blocks[position / size];
  kv.write(cache.pool, block, position % size, row(op.a, t), row(op.b, t));
  if ((options.faults & kFaultBlockScales) == 0 || cache.pool.k_dtype != KvDtype::kInt8) return;
  for (int64_t head = 0; head < cache.pool.kv_heads; ++head) {  // broken on purpose: one scale for all keys of a block
    std::memcpy(cache.pool.k_scales(block, head) + position % size * 4, cache.pool.k_scales(block, head), 4);
  }
}

void Program::Impl::run_token_op(const TokenOp& op, int64_t first, int64_t last) {
  if (op.kind == TokenOp::kQuantize) {
    const int x = op.a;
    op.quantize(activations(op.data, x, row_count(buffers[x].selected), op.width), first, last);
    return;
  }
  const float* vector = op.kind == TokenOp::kNorm || op.kind == TokenOp::kAddNorm ? vectors[op.data].data() : nullptr;
  for (int64_t t = first; t < last; ++t) {
    float* out = op.out >= 0 ? row(op.out, t) : nullptr;
    switch (op.kind) {
      case TokenOp::kEmbed:
        run_embed(op, t);
        break;
      case TokenOp::kNorm:
        for (int64_t g = 0; g < op.groups; ++g) {
          rows.rms_norm(row(op.a, t) + g * op.width, vector, out + g * op.width, op.width, op.factor);
        }
        break;
      case TokenOp::kAddNorm:
        rows.add_norm(row(op.a, t), row(op.b, t), vector, row(op.total, t), out, op.width, op.factor);
        break;
      case TokenOp::kRope:
        run_rope(op, t);
        break;
      case TokenOp::kCacheWrite:
        run_cache_write(op, t);
        break;
      case TokenOp::kAdd:
        rows.add(row(op.a, t), row(op.b, t), out, op.width);
        break;
      case TokenOp::kMul:
        rows.mul(row(op.a, t), row(op.b, t), out, op.width);
        break;
      case TokenOp::kScale:
        rows.scale(row(op.a, t), op.factor, out, op.width);
        break;
      case TokenOp::kSoftcap:
        rows.softcap(row(op.a, t), op.factor, out, op.width);
        break;
      case TokenOp::kActivation:
        rows.activation(op.activation, row(op.a, t), out, op.width);
        break;
      case TokenOp::kGated:
        rows.gated(op.activation, row(op.a, t), row(op.b, t), out, op.width);
        break;
      case TokenOp::kSelect:
        std::memcpy(out, row(op.a, wanted[t]), static_cast<size_t>(op.width) * sizeof(float));
        break;
      case TokenOp::kQuantize:
        break;
    }
  }
}

}  // namespace ridgeline
