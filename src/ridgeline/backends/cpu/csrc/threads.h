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

  // Runs chunks 0..chunks-1 on all workers (the caller is worker 0) and returns when all are done. Chunks are handed out
  // dynamically, so a result must never depend on which worker ran a chunk. Not reentrant.
  void run(Task fn, void* context, int64_t chunks);

  // parallel(chunks, [&](int64_t chunk, int worker) { ... })
  template <typename F>
  void parallel(int64_t chunks, F&& f) {
    run([](void* context, int64_t chunk, int worker) { (*static_cast<F*>(context))(chunk, worker); }, &f, chunks);
  }

 private:
  struct State;
  State* state_;
};

}  // namespace ridgeline
