// A pool of threads for data-parallel loops. It knows nothing of what it runs.
#pragma once
#include <cstdint>

namespace ridgeline {

class ThreadPool {
 public:
  // fn(context, chunk, worker): chunk in [0, chunks), worker in [0, size()).
  using Task = void (*)(void* context, int64_t chunk, int worker);

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Item where the run of worker `i` of `of` begins when `items` are dealt in contiguous runs; i == of gives the end of the last.
  static int64_t begin_of(int64_t items, int64_t i, int64_t of) { return (items * i + of - 1) / of; }
  // Whose run item `item` is in.
  static int64_t worker_of(int64_t items, int64_t item, int64_t of) { return item * of / items; }

  // Runs chunks 0..chunks-1 on all workers (the caller is worker 0) and returns when all are done. Worker w takes one after the
  // other from begin_of(chunks, w, size()) on and then helps the others, so a result must never depend on which worker ran a chunk;
  // but what a worker wrote in one loop it mostly finds in its own caches in the next one dealt alike. Not reentrant.
  // begins: [size() + 1], where the workers' runs begin instead.
  void run(Task fn, void* context, int64_t chunks, const int64_t* begins = nullptr);

  // parallel(chunks, [&](int64_t chunk, int worker) { ... })
  template <typename F>
  void parallel(int64_t chunks, F&& f, const int64_t* begins = nullptr) {
    run([](void* context, int64_t chunk, int worker) { (*static_cast<F*>(context))(chunk, worker); }, &f, chunks, begins);
  }

 private:
  struct State;
  State* state_;
};

}  // namespace ridgeline
