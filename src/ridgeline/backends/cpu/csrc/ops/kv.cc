#include "ops/kv.h"

#include <cstring>

#include "ops/vec_portable.h"
//
#include "ops/kernel_tables.h"
#include "ops/kv_impl.h"

namespace ridgeline {

const KvKernels& kv_kernels(Isa isa) {
  static const KvKernels portable{write_kv, "kv portable"};
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kv_avx512();
  if (isa == Isa::kAvx2) return kv_avx2();
#endif
  (void)isa;
  return portable;
}

void copy_kv_block(const KvPool& pool, int64_t src, int64_t dst) {
  const size_t k_bytes = static_cast<size_t>(pool.k_block_bytes()), v_bytes = static_cast<size_t>(pool.v_block_bytes());
  std::memcpy(pool.k + dst * pool.k_block_bytes(), pool.k + src * pool.k_block_bytes(), k_bytes);
  if (v_bytes > 0) std::memcpy(pool.v + dst * pool.v_block_bytes(), pool.v + src * pool.v_block_bytes(), v_bytes);
}

}  // namespace ridgeline
