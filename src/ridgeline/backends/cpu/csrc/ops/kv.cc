#include "ops/kv.h"

#include <cstring>

#include "ops/vec_portable.h"
// The lanes come first: the next headers compute on them.
#include "ops/kernel_tables.h"
#include "ops/kv_impl.h"

namespace ridgeline {

const KvKernels& kv_kernels(Isa isa) {
  static const KvKernels portable{write_kv, "kv portable"};
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kv_avx512();
  if (isa == Isa::kAvx2) return kv_avx2();
#endif
  (void)isa;
  return portable;
}

void copy_kv_block(const KvPool& pool, int64_t src, int64_t dst) {
  for (int64_t head = 0; head < pool.kv_heads; ++head) {
    std::memmove(pool.k_head(dst, head), pool.k_head(src, head), static_cast<size_t>(pool.k_bytes()));
    if (!pool.v_aliases_k) std::memmove(pool.v_head(dst, head), pool.v_head(src, head), static_cast<size_t>(pool.v_bytes()));
  }
}

}  // namespace ridgeline
