// Draws tokens from logits. The definition is ridgeline/sampling/transforms.py; tokens and log-probabilities equal it bit for bit,
// on every instruction set and for any number of threads, because sums are integers and exp, log and noise use no libm and no FMA.
#pragma once
#include <cstdint>

#include "threads.h"

namespace ridgeline {

// One draw: the fields of Python's SampleRow under the same names. Arrays are borrowed for the call; null with length 0 means None.
// Ids outside [0, vocab) in any array are ignored.
struct SampleRequest {
  int64_t row = 0;  // SampleRow.row
  double temperature = 1.0;
  int64_t top_k = 0;  // 0 or below: off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  uint64_t seed = 0;      // seed modulo 2^64 (Python: seed & (2**64 - 1))
  uint64_t choice = 0;    // likewise
  uint64_t position = 0;  // likewise
  const int32_t* prompt_ids = nullptr;
  int64_t prompt_count = 0;
  const int32_t* output_ids = nullptr;
  int64_t output_count = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int64_t bias_count = 0;
  const uint32_t* allowed = nullptr;  // bit i of word i / 32; ids past the last word are not allowed
  int64_t allowed_words = 0;
  int32_t logprobs = -1;  // SampleRow.logprobs, -1 for None
  int64_t given = -1;     // SampleRow.given, -1 for None; an id outside the vocabulary fails
};

// Sampled, one row. top_ids and top_values are the caller's, `logprobs` long each (may be null when logprobs <= 0).
struct SampleResult {
  int32_t token = -1;
  bool failed = true;
  float logprob = 0;      // of the token; NaN when failed or not asked for
  int32_t top_count = 0;  // entries written, best first
  int32_t* top_ids = nullptr;
  float* top_values = nullptr;
};

constexpr int64_t kMaxSampleVocab = (int64_t{1} << 20) - 1;

// logits: [rows, stride], of which the first `vocab` columns count (min of SamplePlan.vocab and the width; at most kMaxSampleVocab).
// A request whose row is outside [0, rows) fails like one with a NaN.
void sample(ThreadPool& pool, const float* logits, int64_t rows, int64_t stride, int64_t vocab, const SampleRequest* requests, int64_t n,
            SampleResult* results);

}  // namespace ridgeline
