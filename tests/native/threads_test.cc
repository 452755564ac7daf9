// The pool runs every chunk exactly once, whatever sleeps, spins or is late. Built with the sanitizers in CI.
#include "threads.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

using ridgeline::ThreadPool;

namespace {

int failures = 0;

void check(bool ok, const char* what) {
  if (ok) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

void every_chunk_once(int threads) {
  ThreadPool pool(threads);
  check(pool.size() == threads, "size");
  std::vector<int64_t> kept(500, 0);  // written by whoever runs a chunk: regions must not overlap
  int64_t want = 0;
  for (int64_t round = 0; round < 3000; ++round) {
    const int64_t chunks = round % 37 == 0 ? 500 : round % 9;
    std::vector<int64_t> mine(static_cast<size_t>(chunks), 0);
    bool workers_ok = true;
    pool.parallel(chunks, [&](int64_t chunk, int worker) {
      if (worker < 0 || worker >= threads) workers_ok = false;
      ++mine[static_cast<size_t>(chunk)];
      kept[static_cast<size_t>(chunk)] += round;
    });
    for (const int64_t times : mine) check(times == 1, "a chunk ran once");
    check(workers_ok, "worker numbers");
    want += chunks * round;
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until the workers sleep
  }
  int64_t total = 0;
  for (const int64_t k : kept) total += k;
  check(total == want, "all work was done");
}

// A worker takes its own run from the front; runs may begin anywhere and be empty, and there may be more chunks than a run can count.
void runs_of_all_kinds() {
  ThreadPool pool(3);
  const int64_t kBegins[][4] = {{0, 0, 0, 7}, {0, 7, 7, 7}, {0, 2, 2, 7}, {0, 1, 6, 7}};
  for (const auto& begins : kBegins) {
    for (int round = 0; round < 200; ++round) {
      std::vector<int> times(7, 0);
      pool.parallel(
          7, [&](int64_t chunk, int) { ++times[static_cast<size_t>(chunk)]; }, begins);
      for (const int n : times) check(n == 1, "a chunk of a given run ran once");
    }
  }
  std::vector<uint8_t> many((size_t{1} << 21) + 3, 0);
  pool.parallel(static_cast<int64_t>(many.size()), [&](int64_t chunk, int) { ++many[static_cast<size_t>(chunk)]; });
  for (const uint8_t n : many) check(n == 1, "one of very many chunks ran once");
  for (const int64_t workers : {1, 2, 3, 7}) {
    for (int64_t items = 0; items < 20; ++items) {
      check(ThreadPool::begin_of(items, 0, workers) == 0 && ThreadPool::begin_of(items, workers, workers) == items, "runs cover all");
      check(items == 0 || ThreadPool::begin_of(items, 1, workers) > 0, "the caller has a chunk of its own");
    }
  }
}

void pools_come_and_go() {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 4);
    int64_t done = 0;
    if (i % 2 == 0) pool.parallel(1, [&](int64_t, int) { ++done; });
    check(done == (i % 2 == 0 ? 1 : 0), "one chunk");
  }
}

}  // namespace

int main() {
  for (const int threads : {1, 2, 3, 5}) every_chunk_once(threads);
  runs_of_all_kinds();
  pools_come_and_go();
  if (failures == 0) std::puts("threads: ok");
  return failures == 0 ? 0 : 1;
}
