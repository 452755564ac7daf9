// Mask, logit bias and penalties of one row.
#pragma once
#include <cstdint>

#include "ops/sample.h"

namespace ridgeline {

// Whether a request changes its logits at all.
bool is_adjusted(const SampleRequest& request);

// Apply them, in this order, to the row's `vocab` logits.
void adjust(const SampleRequest& request, int64_t vocab, float* logits);

}  // namespace ridgeline
