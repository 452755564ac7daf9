// Running everything between two attentions: no token looks at another there, so each worker takes a few tokens through all of it,
// and what one instruction leaves for the next stays in the core's own caches.
#include <algorithm>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kMostBlock = 64;         // tokens taken through at once
constexpr int64_t kBlocksPerWorker = 4;    // so that a worker held up by others can be helped
constexpr int64_t kMostWeights = 6 << 20;  // bytes of a stretch: every block reads them again, from a cache that must hold them

}  // namespace

// One past the last instruction that can run with `first` in one stretch; `first` where that is not worth it.
size_t Program::Impl::stretch_end(size_t first) const {
  if (!many_tokens()) return first;
  size_t end = first;
  int64_t bytes = 0;
  for (; end < program.size() && program[end].kind != Instruction::kAttend && !program[end].selected; ++end) {
    for (const LinearMember& m : program[end].members) bytes += static_cast<int64_t>(weights[m.weight].memory.bytes());
  }
  return bytes <= kMostWeights && end > first + 1 ? end : first;
}

// Rows of a slot that the workers' blocks need side by side.
int64_t Program::Impl::stretch_rows() const { return kMostBlock * pool.size(); }

// Each worker quantizes into a part of the slot of its own.
void Program::Impl::run_block(const Instruction& instruction, int64_t first, int64_t last, int worker) {
  const int64_t tokens = last - first, slot_row = worker * kMostBlock;
  for (const TokenOp& op : instruction.token_ops) {
    if (op.kind == TokenOp::kQuantize) {
      op.quantize(activations(op.data, op.a, tokens, op.width, first, slot_row), 0, tokens);
    } else {
      run_token_op(op, first, last);
    }
  }
  for (const LinearMember& m : instruction.members) {
    const PackedMatrix& w = weights[m.weight].matrix;
    linear_rows(m, activations(m.slot, instruction.x, tokens, w.columns, first, slot_row), row(m.out, first), 0, w.rows);
  }
}

void Program::Impl::run_stretch(size_t first, size_t end) {
  // As many blocks for each worker: one more for one of them would be a wait for all.
  const int64_t count = step->rows, workers = pool.size(), each = divide_up(count, workers);
  const int64_t blocks = std::max(std::clamp<int64_t>(each / kTokenTile, 1, kBlocksPerWorker), divide_up(each, kMostBlock));
  const int64_t block = divide_up(count, workers * blocks);
  const size_t length = end - first;
  std::vector<int64_t> spent(timing ? length * static_cast<size_t>(workers) : 0);
  const int64_t start = timing ? nanoseconds_now() : 0;
  pool.parallel(divide_up(count, block), [&](int64_t chunk, int worker) {
    int64_t before = timing ? nanoseconds_now() : 0;
    for (size_t i = 0; i < length; ++i) {
      run_block(program[first + i], chunk * block, std::min((chunk + 1) * block, count), worker);
      if (!timing) continue;
      const int64_t now = nanoseconds_now();
      spent[static_cast<size_t>(worker) * length + i] += now - before;
      before = now;
    }
  });
  if (!timing) return;
  // Each instruction gets its share of the workers' time, of the time that passed.
  const double passed = static_cast<double>(nanoseconds_now() - start);
  double all = 1;
  for (const int64_t ns : spent) all += static_cast<double>(ns);
  for (size_t i = 0; i < length; ++i) {
    double mine = 0;
    for (size_t at = i; at < spent.size(); at += length) mine += static_cast<double>(spent[at]);
    this->count(program[first + i], static_cast<int64_t>(passed * mine / all));
  }
}

}  // namespace ridgeline
