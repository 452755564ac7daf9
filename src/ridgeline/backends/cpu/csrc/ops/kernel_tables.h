// The kernel tables that each instruction set's files define; callers use elementwise_kernels, attention_kernels and kv_kernels.
#pragma once
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/kv.h"

namespace ridgeline {

const ElementwiseKernels& elementwise_avx2();
const ElementwiseKernels& elementwise_avx512();
const AttentionKernels& attention_avx2();
const AttentionKernels& attention_avx512();
const AttentionKernels& attention_avx512_bf16();
const KvKernels& kv_avx2();
const KvKernels& kv_avx512();

}  // namespace ridgeline
