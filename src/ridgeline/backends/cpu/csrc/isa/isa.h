// Instruction sets that kernels are written for. One is chosen at load; every kernel table is indexed by it.
#pragma once

namespace ridgeline {

// kAvx512 means AVX-512 F, BW, DQ, VL and VNNI; kAvx512Bf16 has products of bfloat16 pairs too. Each has what those before it have.
enum class Isa { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

Isa best_isa();  // the best one that this CPU and its operating system support
bool isa_supported(Isa isa);
const char* isa_name(Isa isa);

// Round to nearest, denormals kept (MXCSR 0x1f80): set by every worker, so that a caller's mode never changes a result.
void set_float_mode();

}  // namespace ridgeline
