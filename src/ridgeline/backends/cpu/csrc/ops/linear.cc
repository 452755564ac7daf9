// Chooses the linear kernels of an instruction set and encoding. Knows no formula.
#include "ops/linear.h"

#include <cstdlib>
#include <memory>

#include "ops/linear_internal.h"

namespace ridgeline {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

void* thread_scratch(int64_t bytes) {
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local int64_t capacity = 0;
  if (bytes > capacity) {
    const int64_t rounded = (bytes + 4095) / 4096 * 4096;
    memory.reset(std::aligned_alloc(64, static_cast<size_t>(rounded)));
    capacity = memory ? rounded : 0;
    if (!memory) std::abort();
  }
  return memory.get();
}

const LinearKernels& linear_kernels(Isa isa, Encoding encoding) {
  const LinearKernels* found = nullptr;
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) found = linear_kernels_avx512(encoding);
  if (!found && isa != Isa::kPortable) found = linear_kernels_avx2(encoding);
#else
  static_cast<void>(isa);
#endif
  if (!found) found = linear_kernels_portable(encoding);
  return *found;
}

}  // namespace ridgeline
