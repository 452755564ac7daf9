// Running a Linear or a group of them: the pairs of row tiles of all members form one list, cut into chunks for the workers.
#include <algorithm>
#include <atomic>

#include "program_impl.h"

namespace ridgeline {
namespace {

constexpr int64_t kChunkBytes = 32 << 10;  // of packed weights, at least, so that handing out a chunk costs nothing beside it
constexpr int64_t kChunksPerWorker = 8;

constexpr int64_t kRows = 2 * kRowTile;  // row tiles are packed in pairs: a chunk that splits one runs half-wide vectors

int64_t tiles_of(const Weight& w) { return (w.matrix.rows + kRows - 1) / kRows; }

// Deals out chunks so that each worker walks one contiguous run of the weights, then helps with the others': dealt by turns,
// workers would prefetch each other's chunks and read memory more slowly.
class Runs {
 public:
  Runs(int64_t chunks, int workers) : count_(std::min(workers, kMost)) {
    for (int i = 0; i < count_; ++i) run_[i].range.store(pack(chunks * i / count_, chunks * (i + 1) / count_), std::memory_order_relaxed);
  }

  // A chunk that nobody else gets. To be called as often as there are chunks.
  int64_t take(int worker) {
    for (int i = 0;; ++i) {
      std::atomic<uint64_t>& range = run_[(worker + i) % count_].range;
      uint64_t seen = range.load(std::memory_order_relaxed);
      for (;;) {
        const int64_t first = static_cast<int64_t>(seen >> 32), last = static_cast<int64_t>(seen & 0xffffffffu);
        if (first == last) break;
        if (range.compare_exchange_weak(seen, pack(first + 1, last), std::memory_order_relaxed)) return first;
      }
    }
  }

 private:
  static constexpr int kMost = 64;  // more workers than this share runs
  static uint64_t pack(int64_t first, int64_t last) { return static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(last); }
  struct alignas(64) Run {
    std::atomic<uint64_t> range;
  };
  int count_;
  Run run_[kMost];
};

}  // namespace

void Program::Impl::run_linear(const Instruction& instruction) {
  const int64_t count = row_count(instruction.selected);
  if (count == 0) return;
  int64_t tiles = 0, bytes = 0;
  for (const LinearMember& m : instruction.members) {
    tiles += tiles_of(weights[m.weight]);
    bytes += static_cast<int64_t>(weights[m.weight].memory->bytes());
  }
  const int64_t useful = std::max<int64_t>(1, bytes * std::min<int64_t>(count, 16) / kChunkBytes);
  const int64_t chunks = std::min({tiles, useful, pool.size() * kChunksPerWorker});
  Runs runs(chunks, pool.size());
  pool.parallel(chunks, [&](int64_t, int worker) {
    const int64_t chunk = runs.take(worker);
    int64_t begin = tiles * chunk / chunks, end = tiles * (chunk + 1) / chunks;
    for (const LinearMember& m : instruction.members) {
      const Weight& w = weights[m.weight];
      const int64_t mine = tiles_of(w), first = begin * kRows, last = std::min(std::min(end, mine) * kRows, w.matrix.rows);
      if (begin < mine && first < last) {
        const int64_t stride = buffers[m.out].width;
        float* y = row(m.out, 0);
        w.kernels->matmul(w.matrix, activations(m.slot, instruction.x, count, w.matrix.columns), y, stride, first, last);
        if (m.bias >= 0) {
          const float* bias = vectors[m.bias].data();
          for (int64_t t = 0; t < count; ++t) rows.add(y + t * stride + first, bias + first, y + t * stride + first, last - first);
        }
      }
      begin = std::max<int64_t>(begin - mine, 0);
      end -= mine;
      if (end <= 0) break;
    }
  });
}

}  // namespace ridgeline
