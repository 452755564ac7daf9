// Running a Linear or a group of them: the pairs of row tiles of all members form one list, cut into chunks for the workers.
#include <algorithm>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kChunkBytes = 32 << 10;  // of packed weights, at least, so that handing out a chunk costs nothing beside it
constexpr int64_t kChunksPerWorker = 8;

constexpr int64_t kRows = 2 * kRowTile;  // row tiles are packed in pairs: a chunk that splits one runs half-wide vectors

int64_t tiles_of(const Weight& w) { return divide_up(w.matrix.rows, kRows); }

}  // namespace

// Rows [first, last) of a member's matrix times the tokens of `a`; y is where the first of them has its results.
void Program::Impl::linear_rows(const LinearMember& member, const Activations& a, float* y, int64_t first, int64_t last) const {
  const Weight& w = weights[member.weight];
  const int64_t stride = buffers[member.out].width;
  w.kernels->matmul(w.matrix, a, y, stride, first, last);
  if (member.bias < 0) return;
  const float* bias = vectors[member.bias].data();
  for (int64_t t = 0; t < a.tokens; ++t) rows.add(y + t * stride + first, bias + first, y + t * stride + first, last - first);
}

void Program::Impl::run_linear(const Instruction& instruction) {
  const int64_t count = row_count(instruction.selected);
  if (count == 0) return;
  int64_t tiles = 0, bytes = 0;
  for (const LinearMember& m : instruction.members) {
    tiles += tiles_of(weights[m.weight]);
    bytes += static_cast<int64_t>(weights[m.weight].memory.bytes());
  }
  // Each worker walks a contiguous run of the weights, for dealt by turns workers would prefetch each other's and read memory more
  // slowly; with many tokens, all the weights for its own tokens (`token_parts`).
  const int64_t useful = std::max<int64_t>(1, bytes * std::min<int64_t>(count, 16) / kChunkBytes);
  const int64_t parts = token_parts(count), chunks = std::min({tiles, useful, divide_up(pool.size() * kChunksPerWorker, parts)});
  pool.parallel(parts * chunks, [&](int64_t number, int) {
    const int64_t part = number / chunks, chunk = number % chunks;
    const int64_t from = token_part(count, part, parts), tokens = token_part(count, part + 1, parts) - from;
    int64_t begin = tiles * chunk / chunks, end = tiles * (chunk + 1) / chunks;
    for (const LinearMember& m : instruction.members) {
      const Weight& w = weights[m.weight];
      const int64_t mine = tiles_of(w), first = begin * kRows, last = std::min(std::min(end, mine) * kRows, w.matrix.rows);
      if (begin < mine && first < last) {
        const Activations a = activations(m.slot, instruction.x, count, w.matrix.columns);
        linear_rows(m, tokens_of(a, from, tokens), row(m.out, from), first, last);
      }
      begin = std::max<int64_t>(begin - mine, 0);
      end -= mine;
      if (end <= 0) break;
    }
  });
}

}  // namespace ridgeline
