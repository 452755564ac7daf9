// What a program tells about itself: buffers, timings, kernels, bytes.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "program_impl.h"

namespace ridgeline {

float* Program::buffer(int number) const { return impl_->buffers.at(number).data(); }
std::shared_ptr<void> Program::buffer_owner(int number) const { return impl_->buffers.at(number).memory.owner(); }
int64_t Program::buffer_width(int number) const { return impl_->buffers.at(number).width; }
int64_t Program::buffer_rows(int number) const { return impl_->buffers.at(number).rows; }
ThreadPool& Program::pool() { return impl_->pool; }

void Program::set_timing(bool on) { impl_->timing = on; }
int64_t Program::instructions() const { return static_cast<int64_t>(impl_->program.size()); }
const std::vector<int>& Program::instruction_ops(int64_t i) const { return impl_->program.at(static_cast<size_t>(i)).ops; }
InstructionStats Program::stats(int64_t i) const { return impl_->program.at(static_cast<size_t>(i)).stats; }

void Program::reset_stats() {
  for (Instruction& instruction : impl_->program) instruction.stats = {};
}

std::string Program::instruction_label(int64_t i) const {
  static const char* const kNames[] = {"embed", "norm",    "add_norm",   "rope",  "cache_write", "add",     "mul",
                                       "scale", "softcap", "activation", "gated", "select",      "quantize"};
  const Instruction& instruction = impl_->program.at(static_cast<size_t>(i));
  if (instruction.kind == Instruction::kAttend) return "attend";
  if (instruction.kind == Instruction::kLinear) return "linear";
  std::string label;
  for (const TokenOp& op : instruction.token_ops) label += (label.empty() ? "" : "+") + std::string(kNames[op.kind]);
  return label;
}

std::string Program::weight_kernel(int weight) const { return impl_->weights.at(weight).kernels->name; }

std::string Program::kernel_names() const { return std::string(impl_->rows.name) + "; " + impl_->attention.name + "; " + impl_->kv.name; }

int64_t Program::weight_bytes() const {
  int64_t bytes = 0;
  for (const Weight& w : impl_->weights) bytes += static_cast<int64_t>(w.memory.bytes());
  for (const std::vector<float>& v : impl_->vectors) bytes += static_cast<int64_t>(v.size() * sizeof(float));
  return bytes;
}

int64_t Program::kv_bytes() const {
  int64_t bytes = 0;
  for (const CacheStore& c : impl_->caches) bytes += static_cast<int64_t>(c.k.bytes() + c.v.bytes());
  return bytes;
}

int64_t Program::arena_bytes() const {
  int64_t bytes = static_cast<int64_t>(impl_->partials.bytes() + impl_->shared_states.bytes());
  for (const BufferStore& b : impl_->buffers) bytes += static_cast<int64_t>(b.memory.bytes());
  for (const ActivationSlot& s : impl_->slots) bytes += static_cast<int64_t>(s.codes.bytes() + s.scales.bytes() + s.sums.bytes());
  for (const MemoryPiece& s : impl_->scratch) bytes += static_cast<int64_t>(s.bytes());
  for (const RopeTable& r : impl_->ropes) bytes += static_cast<int64_t>(r.values.size() * sizeof(float));
  return bytes;
}

void Program::fill_kv(uint8_t byte) {
  for (const CacheStore& c : impl_->caches) {
    std::memset(c.k.data(), byte, c.k.bytes());
    if (c.v.bytes() > 0) std::memset(c.v.data(), byte, c.v.bytes());
  }
}

void Program::fill_block(int64_t group, int64_t block, uint8_t byte) {
  for (const CacheStore& c : impl_->caches) {
    if (c.group != group || block < 0 || block >= c.pool.blocks) continue;
    for (int64_t head = 0; head < c.pool.kv_heads; ++head) {
      std::memset(c.pool.k_head(block, head), byte, static_cast<size_t>(c.pool.k_bytes()));
      if (c.pool.v_bytes() > 0) std::memset(c.pool.v_head(block, head), byte, static_cast<size_t>(c.pool.v_bytes()));
    }
  }
}

bool Program::block_holds_only(int64_t group, int64_t block, uint8_t byte) const {
  const auto only = [byte](const uint8_t* p, int64_t n) { return std::all_of(p, p + n, [byte](uint8_t b) { return b == byte; }); };
  for (const CacheStore& c : impl_->caches) {
    if (c.group != group || block < 0 || block >= c.pool.blocks) continue;
    for (int64_t head = 0; head < c.pool.kv_heads; ++head) {
      if (!only(c.pool.k_head(block, head), c.pool.k_bytes())) return false;
      if (!c.pool.v_aliases_k && !only(c.pool.v_head(block, head), c.pool.v_bytes())) return false;
    }
  }
  return true;
}

// FNV-1a over all packed weights.
uint64_t Program::weights_checksum() const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const Weight& w : impl_->weights) {
    hash = std::accumulate(w.memory.data(), w.memory.data() + w.memory.bytes(), hash,
                           [](uint64_t h, uint8_t byte) { return (h ^ byte) * 0x100000001b3u; });
  }
  return hash;
}

}  // namespace ridgeline
