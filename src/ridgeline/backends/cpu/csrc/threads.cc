#include "threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "isa/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace ridgeline {
namespace {

constexpr int kIndexBits = 20;  // a run is (epoch << 40) | (next chunk << 20) | end
constexpr int64_t kMostChunks = (int64_t{1} << kIndexBits) - 1;
constexpr int kSpins = 300;  // pauses before giving the CPU away between looks: a few microseconds
constexpr int kYields = 60;  // looks with a yield in between before sleeping: some tens of microseconds

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void yield_cpu() {
#if defined(__linux__)
  sched_yield();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

struct Run {
  uint64_t word;
  int64_t next() const { return static_cast<int64_t>(word >> kIndexBits) & kMostChunks; }
  int64_t end() const { return static_cast<int64_t>(word) & kMostChunks; }
  bool open() const { return next() < end(); }
  uint64_t taken() const { return word + (uint64_t{1} << kIndexBits); }
};

// A region ends when its chunks are done, not when every worker has looked: a worker that the system has taken off its CPU
// holds nobody up unless it is in the middle of a chunk.
struct ThreadPool::State {
  // All that a worker reads to begin lies in one line of its own: cores may be far from each other.
  struct alignas(64) Slot {
    std::atomic<uint64_t> run{0};
    std::atomic<Task> task{nullptr};
    std::atomic<void*> context{nullptr};
  };
  explicit State(int threads) : slots(static_cast<size_t>(threads)) {}

  std::vector<Slot> slots;
  uint64_t epoch = 0;
  alignas(64) std::atomic<int64_t> finished{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;

  bool open(int worker) const { return Run{slots[worker].run.load(std::memory_order_acquire)}.open(); }

  // Takes and runs chunks until none is left: its own run first. What a slot's fields say belongs to the epoch of its run, because
  // they change only when that run is used up, and then the exchange fails.
  void work(int worker) {
    const size_t count = slots.size();
    for (size_t i = 0; i < count; ++i) {
      Slot& slot = slots[(static_cast<size_t>(worker) + i) % count];
      int64_t done = 0;
      Run run{slot.run.load(std::memory_order_acquire)};
      while (run.open()) {
        const Task fn = slot.task.load(std::memory_order_acquire);
        void* const argument = slot.context.load(std::memory_order_acquire);
        if (!slot.run.compare_exchange_weak(run.word, run.taken(), std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        fn(argument, run.next(), worker);
        ++done;
        run.word = slot.run.load(std::memory_order_acquire);
      }
      if (done > 0) finished.fetch_add(done, std::memory_order_acq_rel);
    }
  }

  void sleep_until_open(int worker) {
    std::unique_lock<std::mutex> lock(mutex);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    wake.wait(lock, [this, worker] { return stop.load() || open(worker); });
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  void loop(int worker) {
    set_float_mode();
    while (!stop.load(std::memory_order_acquire)) {
      int looks = 0;
      while (!open(worker) && !stop.load(std::memory_order_relaxed)) {
        if (looks < kSpins) {
          relax();
        } else if (looks < kSpins + kYields) {
          yield_cpu();
        } else {
          sleep_until_open(worker);
          break;
        }
        ++looks;
      }
      work(worker);
    }
  }

  void publish(Task fn, void* argument, int64_t total, const int64_t* begins) {
    const int64_t count = static_cast<int64_t>(slots.size());
    finished.store(0, std::memory_order_relaxed);
    ++epoch;
    for (int64_t i = count; i-- > 0;) {
      const int64_t first = begins != nullptr ? begins[i] : begin_of(total, i, count);
      const int64_t end = begins != nullptr ? begins[i + 1] : begin_of(total, i + 1, count);
      if (first == end) continue;
      slots[i].task.store(fn, std::memory_order_release);
      slots[i].context.store(argument, std::memory_order_release);
      const uint64_t run = static_cast<uint64_t>(first) << kIndexBits | static_cast<uint64_t>(end);
      slots[i].run.store(epoch << (2 * kIndexBits) | run, std::memory_order_release);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // runs before sleepers, as a sleeper counts itself before it looks
    if (sleepers.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex);
      wake.notify_all();
    }
  }

  void wait(int64_t total) {
    for (int looks = 0; finished.load(std::memory_order_acquire) < total; ++looks) {
      if (looks < kSpins) {
        relax();
      } else {
        yield_cpu();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(new State(threads)) {
  for (int worker = 1; worker < threads; ++worker) state_->workers.emplace_back([this, worker] { state_->loop(worker); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop.store(true);
    state_->wake.notify_all();
  }
  for (std::thread& worker : state_->workers) worker.join();
  delete state_;
}

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(Task fn, void* context, int64_t chunks, const int64_t* begins) {
  if (chunks == 1 || state_->workers.empty()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) fn(context, chunk, 0);
    return;
  }
  if (chunks <= 0) return;
  if (chunks > kMostChunks) {  // in runs of chunks
    const int64_t each = (chunks + kMostChunks - 1) / kMostChunks;
    return parallel((chunks + each - 1) / each, [&](int64_t i, int worker) {
      for (int64_t chunk = i * each; chunk < std::min((i + 1) * each, chunks); ++chunk) fn(context, chunk, worker);
    });
  }
  state_->publish(fn, context, chunks, begins);
  state_->work(0);
  state_->wait(chunks);
}

}  // namespace ridgeline
