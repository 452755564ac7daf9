#include "ops/sample_lanes.h"

#include <algorithm>
#include <cfloat>

#include "ops/sample_math.h"

// Results are the same bits with or without these clones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define RIDGELINE_WIDER __attribute__((target_clones("avx2", "default")))
#else
#define RIDGELINE_WIDER
#endif

namespace ridgeline::lanes {

RIDGELINE_WIDER Scan scan(const float* l, int64_t first, int64_t last) {
  Scan out;
  constexpr int64_t kBlock = 64 * kLane;
  float high = kLowest;
  int64_t at = -1;
  int32_t fine[kLane];
  for (int k = 0; k < kLane; k++) fine[k] = -1;
  for (int64_t i = first; i < last; i += kBlock) {
    int64_t end = std::min(last, i + kBlock), j = i;
    float m[kLane];
    for (int k = 0; k < kLane; k++) m[k] = kLowest;
    for (; j + kLane <= end; j += kLane) {
      for (int k = 0; k < kLane; k++) {
        float v = l[j + k];
        m[k] = v > m[k] ? v : m[k];
        fine[k] &= v <= FLT_MAX ? -1 : 0;
      }
    }
    float block = kLowest;
    for (int k = 0; k < kLane; k++) block = m[k] > block ? m[k] : block;
    for (; j < end; j++) {
      block = l[j] > block ? l[j] : block;
      fine[0] &= l[j] <= FLT_MAX ? -1 : 0;
    }
    if (block > high) high = block, at = i;
  }
  out.bad = false;
  for (int k = 0; k < kLane; k++) out.bad |= !fine[k];
  out.high = high;
  if (at < 0) return out;
  while (l[at] != high) at++;
  out.best = int32_t(at);
  return out;
}

RIDGELINE_WIDER bool any_from(const float* l, float floor) {
  int32_t found = 0;
  for (int k = 0; k < kLane; k++) found |= l[k] >= floor ? -1 : 0;
  return found != 0;
}

RIDGELINE_WIDER int64_t mass_of(const float* l, int64_t first, int64_t last, float high) {
  int64_t sum = 0, i = first;
  for (; i + kLane <= last; i += kLane) {
    for (int k = 0; k < kLane; k++) sum += exact::weight(l[i + k] - high);
  }
  for (; i < last; i++) sum += exact::weight(l[i] - high);
  return sum;
}

RIDGELINE_WIDER float fill_x(const float* l, int64_t n, float high, float temperature, float* x) {
  float top[kLane];
  for (int k = 0; k < kLane; k++) top[k] = kLowest;
  if (n < kWalk) std::fill(x + n, x + kWalk, kLowest);
  for (int64_t j = 0; j < n; j++) x[j] = (l[j] - high) / temperature;
  for (int j = 0; j < kWalk; j += kLane) {
    for (int k = 0; k < kLane; k++) top[k] = x[j + k] > top[k] ? x[j + k] : top[k];
  }
  return *std::max_element(top, top + kLane);
}

RIDGELINE_WIDER void weights(const float* x, int64_t* w) {
  for (int k = 0; k < kWalk; k++) w[k] = exact::weight(x[k]);
}

RIDGELINE_WIDER bool noise_reaches(uint64_t key, int64_t id, int ones) {
  uint64_t found = 0;
  for (int k = 0; k < kWalk; k++) found |= ((~exact::noise_bits(key, id + k) >> (64 - ones)) - 1) >> 63;
  return found != 0;
}

}  // namespace ridgeline::lanes
