#include "threads.h"

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

constexpr uint64_t kIndexMask = 0xffffffffu;  // a ticket is (epoch << 32) | next chunk
constexpr int kSpins = 300;                   // pauses before giving the CPU away between looks: a few microseconds
constexpr int kYields = 60;                   // looks with a yield in between before sleeping: some tens of microseconds

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

// A region ends when its chunks are done, not when every worker has looked: a worker that the system has taken off its CPU
// holds nobody up unless it is in the middle of a chunk.
struct ThreadPool::State {
  alignas(64) std::atomic<uint64_t> ticket{kIndexMask};
  alignas(64) std::atomic<int64_t> finished{0};
  alignas(64) std::atomic<Task> task{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> chunks{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;

  bool open(uint64_t t) const {
    return (t & kIndexMask) != kIndexMask && static_cast<int64_t>(t & kIndexMask) < chunks.load(std::memory_order_acquire);
  }

  // Takes and runs chunks until none is left. The fields read belong to the ticket's epoch: they change only after the
  // ticket was closed, and then the exchange fails.
  void work(int worker) {
    uint64_t t = ticket.load(std::memory_order_acquire);
    for (;;) {
      const int64_t total = chunks.load(std::memory_order_acquire);
      const Task fn = task.load(std::memory_order_acquire);
      void* const argument = context.load(std::memory_order_acquire);
      const int64_t index = static_cast<int64_t>(t & kIndexMask);
      if ((t & kIndexMask) == kIndexMask || index >= total) return;
      if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      fn(argument, index, worker);
      finished.fetch_add(1, std::memory_order_acq_rel);
      t = ticket.load(std::memory_order_acquire);
    }
  }

  void sleep_until_open() {
    std::unique_lock<std::mutex> lock(mutex);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    wake.wait(lock, [this] { return stop.load() || open(ticket.load(std::memory_order_seq_cst)); });
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  void loop(int worker) {
    set_float_mode();
    while (!stop.load(std::memory_order_acquire)) {
      int looks = 0;
      while (!open(ticket.load(std::memory_order_acquire)) && !stop.load(std::memory_order_relaxed)) {
        if (looks < kSpins) {
          relax();
        } else if (looks < kSpins + kYields) {
          yield_cpu();
        } else {
          sleep_until_open();
          break;
        }
        ++looks;
      }
      work(worker);
    }
  }

  void publish(Task fn, void* argument, int64_t total) {
    const uint64_t epoch = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
    ticket.store((epoch << 32) | kIndexMask, std::memory_order_seq_cst);
    finished.store(0, std::memory_order_relaxed);
    task.store(fn, std::memory_order_release);
    context.store(argument, std::memory_order_release);
    chunks.store(total, std::memory_order_release);
    ticket.store((epoch + 1) << 32, std::memory_order_seq_cst);
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

ThreadPool::ThreadPool(int threads) : state_(new State) {
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

void ThreadPool::run(Task fn, void* context, int64_t chunks) {
  if (chunks == 1 || state_->workers.empty()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) fn(context, chunk, 0);
    return;
  }
  if (chunks <= 0) return;
  state_->publish(fn, context, chunks);
  state_->work(0);
  state_->wait(chunks);
}

}  // namespace ridgeline
