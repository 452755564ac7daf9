// What this machine can do at most, measured: reading memory, int8 products, float32 multiply-adds and products of bfloat16 pairs in the
// style of each instruction set's kernels. Knows no model.
#pragma once
#include <cstddef>
#include <cstdint>

#include "isa/isa.h"
#include "threads.h"

namespace ridgeline {

// Loops over registers; each returns the operations it did (a multiply-add is two).
struct ProbeKernels {
  double (*int8_ops)(int64_t rounds);
  double (*f32_ops)(int64_t rounds);
  double (*bf16_ops)(int64_t rounds);                    // null where bfloat16 is multiplied as float32
  uint64_t (*read)(const uint8_t* data, int64_t bytes);  // 64-byte aligned, a multiple of 1024
};

const ProbeKernels& probe_kernels(Isa isa);  // the portable ones where `isa` was not compiled

struct Ceilings {
  double read_gb_s = 0;   // best over footprints beyond the last cache and page sizes
  double cache_gb_s = 0;  // a working set of 8 MB
  double int8_gops = 0;
  double f32_gflops = 0;
  double bf16_gflops = 0;  // that of float32 where the instruction set has no pairs of bfloat16
};

// Best of many short runs on all threads of the pool, in about `seconds`. Uses at most `max_bytes` of memory.
Ceilings probe(ThreadPool& pool, Isa isa, double seconds, int64_t max_bytes);

}  // namespace ridgeline
