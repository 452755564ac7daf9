// Mask, logit bias and penalties (transforms.adjusted).
#include "ops/sample_adjust.h"

#include <algorithm>
#include <cfloat>
#include <limits>
#include <vector>

namespace ridgeline {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Each distinct id of the request once, whatever the vocabulary: a table of counts that is all zero between calls.
void penalize(const SampleRequest& q, int64_t vocab, float* l) {
  thread_local std::vector<int32_t> counts;
  if (int64_t(counts.size()) < vocab) counts.resize(vocab, 0);
  auto inside = [vocab](int32_t id) { return id >= 0 && id < vocab; };
  for (int64_t i = 0; i < q.output_count; i++) {
    if (inside(q.output_ids[i])) counts[q.output_ids[i]]++;
  }
  float factor = std::max(float(q.repetition_penalty), FLT_MIN);
  float frequency = float(q.frequency_penalty), presence = float(q.presence_penalty);
  bool repetition = q.repetition_penalty != 1.0, output_only = q.frequency_penalty != 0.0 || q.presence_penalty != 0.0;
  auto repeat = [&](int32_t id) { l[id] = std::min(l[id] > 0 ? l[id] / factor : l[id] * factor, FLT_MAX); };
  for (int64_t i = 0; i < q.output_count; i++) {
    int32_t id = q.output_ids[i];
    if (!inside(id) || counts[id] <= 0) continue;
    if (repetition) repeat(id);
    if (output_only) l[id] = std::min((l[id] - frequency * float(counts[id])) - presence, FLT_MAX);
    counts[id] = -1;  // done
  }
  for (int64_t i = 0; repetition && i < q.prompt_count; i++) {
    int32_t id = q.prompt_ids[i];
    if (!inside(id) || counts[id] != 0) continue;
    repeat(id);
    counts[id] = -1;
  }
  for (int64_t i = 0; i < q.output_count; i++) {
    if (inside(q.output_ids[i])) counts[q.output_ids[i]] = 0;
  }
  for (int64_t i = 0; repetition && i < q.prompt_count; i++) {
    if (inside(q.prompt_ids[i])) counts[q.prompt_ids[i]] = 0;
  }
}

}  // namespace

bool is_adjusted(const SampleRequest& q) {
  return q.allowed || q.bias_count > 0 || q.repetition_penalty != 1.0 || q.frequency_penalty != 0.0 || q.presence_penalty != 0.0;
}

void adjust(const SampleRequest& q, int64_t vocab, float* l) {
  if (q.allowed) {
    for (int64_t word = 0; word * 32 < vocab; word++) {
      uint32_t bits = word < q.allowed_words ? q.allowed[word] : 0;
      int64_t end = std::min<int64_t>(32, vocab - word * 32);
      for (int64_t b = 0; b < end && bits != 0xFFFFFFFFu; b++) {
        if (!((bits >> b) & 1)) l[word * 32 + b] = kLowest;
      }
    }
  }
  for (int64_t i = 0; i < q.bias_count; i++) {
    int32_t id = q.bias_ids[i];
    if (id >= 0 && id < vocab) l[id] += q.bias_values[i];
  }
  for (int64_t i = 0; i < q.bias_count; i++) {
    int32_t id = q.bias_ids[i];
    if (id >= 0 && id < vocab) l[id] = std::min(l[id], FLT_MAX);
  }
  if (q.repetition_penalty != 1.0 || q.frequency_penalty != 0.0 || q.presence_penalty != 0.0) penalize(q, vocab, l);
}

}  // namespace ridgeline
