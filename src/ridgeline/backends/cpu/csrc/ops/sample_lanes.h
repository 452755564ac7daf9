// The loops of sampling that run over every logit, written so that the compiler turns each into SIMD. No result depends on the width.
#pragma once
#include <cstdint>
#include <limits>

namespace ridgeline::lanes {

constexpr int64_t kLane = 16;  // ids looked at together
constexpr int64_t kWalk = 64;  // ids drawn together
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Scan {
  bool bad = false;  // a NaN or +inf
  float high = kLowest;
  int32_t best = -1;  // first id of the highest logit, -1 when all are -inf
};

Scan scan(const float* l, int64_t first, int64_t last);

// Whether one of 16 logits is >= floor.
bool any_from(const float* l, float floor);

// Sum of exact::weight(l[i] - high).
int64_t mass_of(const float* l, int64_t first, int64_t last, float high);

// x[j] = (l[j] - high) / temperature of n <= 64 ids, -inf from n to 64; returns the largest.
float fill_x(const float* l, int64_t n, float high, float temperature, float* x);

// w[j] = exact::weight(x[j]) of 64 values.
void weights(const float* x, int64_t* w);

// Whether any of 64 ids has noise bits that start with `ones` ones (1..53): only those reach exact::gumbel_bound >= ones * log 2.
bool noise_reaches(uint64_t key, int64_t id, int ones);

}  // namespace ridgeline::lanes
