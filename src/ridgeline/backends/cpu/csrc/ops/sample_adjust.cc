// Mask, logit bias and penalties (transforms.adjusted).
#include "ops/sample_adjust.h"

#include <algorithm>
#include <cfloat>
#include <limits>
#include <vector>

namespace ridgeline {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

void count_ids(const int32_t* ids, int64_t n, int64_t vocab, int32_t* counts) {
  for (int64_t i = 0; i < n; i++) {
    if (ids[i] >= 0 && ids[i] < vocab) counts[ids[i]]++;
  }
}

void penalize(const SampleRequest& q, int64_t vocab, float* l) {
  std::vector<int32_t> output(vocab, 0);
  count_ids(q.output_ids, q.output_count, vocab, output.data());
  if (q.repetition_penalty != 1.0) {
    std::vector<int32_t> prompt(vocab, 0);
    count_ids(q.prompt_ids, q.prompt_count, vocab, prompt.data());
    float factor = std::max(float(q.repetition_penalty), FLT_MIN);
    for (int64_t i = 0; i < vocab; i++) {
      if (prompt[i] | output[i]) l[i] = std::min(l[i] > 0 ? l[i] / factor : l[i] * factor, FLT_MAX);
    }
  }
  if (q.frequency_penalty == 0.0 && q.presence_penalty == 0.0) return;
  float frequency = float(q.frequency_penalty), presence = float(q.presence_penalty);
  for (int64_t i = 0; i < vocab; i++) {
    if (output[i] > 0) l[i] = std::min((l[i] - frequency * float(output[i])) - presence, FLT_MAX);
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
