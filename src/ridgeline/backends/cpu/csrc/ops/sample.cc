// Sampling in four sweeps over (row, piece of the vocabulary): scan, measure, walk, finish. Every merge is of integers or of maxima with
// a total order, so neither pieces nor threads can change a result.
#include "ops/sample.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "ops/sample_adjust.h"
#include "ops/sample_lanes.h"
#include "ops/sample_math.h"

namespace ridgeline {
namespace {

using lanes::kLane;
using lanes::kLowest;
using lanes::kWalk;

constexpr int64_t kPiece = 16384;      // ids per unit of work
constexpr double kGreedyBelow = 1e-5;  // transforms.GREEDY_BELOW
constexpr int kBuckets = 961;          // of width 1/32 over x in [-30, 0]

// Best of a draw so far: highest score, lowest id among equals.
struct Best {
  double score = -std::numeric_limits<double>::infinity();
  int32_t id = -1;
  void offer(double s, int32_t i) {
    if (s > score || (s == score && (id < 0 || i < id))) score = s, id = i;
  }
};

// The k best keys of a stream: keep those above a threshold that rises whenever the buffer is cut back to k.
class TopKeys {
 public:
  void start(int64_t k) { k_ = k; }
  void push(uint64_t key) {
    if (key <= threshold_) return;
    keys.push_back(key);
    if (int64_t(keys.size()) >= 2 * k_ + 64) cut();
  }
  // A logit below this cannot enter.
  float floor() const { return threshold_ ? exact::key_logit(threshold_) : kLowest; }
  void cut() {
    if (int64_t(keys.size()) <= k_) return;
    std::nth_element(keys.begin(), keys.begin() + (k_ - 1), keys.end(), std::greater<uint64_t>());
    keys.resize(k_);
    if (k_ > 0) threshold_ = keys[k_ - 1];
  }
  std::vector<uint64_t> keys;

 private:
  int64_t k_ = 0;
  uint64_t threshold_ = 0;
};

// What one piece of one row found.
struct Piece {
  lanes::Scan scan;
  int64_t raw_mass = 0;  // softmax of the raw logits
  TopKeys raw_top;       // for logprobs
  TopKeys top;           // for top-k, or the keys of the bucket where top-p ends
  std::vector<int64_t> bucket_mass;
  Best best;
};

enum class Mode { kDone, kWalk, kTopK };  // kWalk: no top-k, every id may be kept

struct Row {
  const SampleRequest* request = nullptr;
  const float* raw = nullptr;
  const float* values = nullptr;  // adjusted logits
  std::vector<float> own;         // storage of `values` when they differ from `raw`
  bool failed = false;
  Mode mode = Mode::kDone;
  float raw_high = kLowest, high = kLowest;
  int32_t best = -1;                       // first of the order
  float temperature = 1, floor = kLowest;  // x below `floor` is cut by min-p
  uint64_t key = 0;
  bool top_p = false;
  int end_bucket = kBuckets;  // ids of earlier buckets are kept whole, this one in part
  int64_t mass_before = 0, mass = 0;
  std::atomic<double> hint{-std::numeric_limits<double>::infinity()};  // a score that somebody reached

  float x(float logit) const { return (logit - high) / temperature; }
};

void apply_adjustments(Row& row, int64_t vocab) {
  row.own.assign(row.raw, row.raw + vocab);
  adjust(*row.request, vocab, row.own.data());
  lanes::Scan found = lanes::scan(row.own.data(), 0, vocab);
  row.values = row.own.data(), row.high = found.high, row.best = found.best;
}

// Decide what is left to do for a row whose best id is known.
void plan_row(Row& row, int64_t vocab) {
  const SampleRequest& q = *row.request;
  row.mode = Mode::kDone;
  if (row.best < 0 || row.high == kLowest || q.given >= vocab) {
    row.failed = true;
    return;
  }
  if (q.given >= 0) {
    row.best = int32_t(q.given);
    return;
  }
  if (q.temperature < kGreedyBelow || q.top_k == 1) return;
  row.mode = q.top_k > 0 && q.top_k < vocab ? Mode::kTopK : Mode::kWalk;
  row.temperature = float(q.temperature);
  row.top_p = q.top_p < 1.0;
  row.floor = q.min_p > 0.0 ? float(std::log(q.min_p)) : kLowest;
  row.key = exact::noise_key(q.seed, q.choice, q.position);
  row.hint.store(exact::gumbel(exact::noise_bits(row.key, row.best)), std::memory_order_relaxed);  // x of the best id is 0
}

void collect(const float* l, int64_t first, int64_t last, TopKeys& out) {
  for (int64_t i = first; i < last; i += kLane) {
    int64_t end = std::min(last, i + kLane);
    float floor = out.floor();
    if (end - i == kLane && !lanes::any_from(l + i, floor)) continue;
    for (int64_t j = i; j < end; j++) {
      if (l[j] >= floor && l[j] > kLowest) out.push(exact::order_key(l[j], j));
    }
  }
  out.cut();
}

int bucket_of(float x) { return int(x * -32.0f); }  // x in [-30, 0]

void measure_buckets(const Row& row, int64_t first, int64_t last, std::vector<int64_t>& mass) {
  mass.assign(kBuckets, 0);
  float x[kWalk];
  int64_t w[kWalk];
  for (int64_t i = first; i < last; i += kWalk) {
    int64_t n = std::min(kWalk, last - i);
    lanes::fill_x(row.values + i, n, row.high, row.temperature, x);
    lanes::weights(x, w);
    for (int64_t j = 0; j < n; j++) {
      if (w[j]) mass[bucket_of(x[j])] += w[j];
    }
  }
}

void measure(const Row& row, int64_t first, int64_t last, Piece& piece) {
  if (row.failed) return;
  int32_t k = row.request->logprobs;
  if (k >= 0) piece.raw_mass = lanes::mass_of(row.raw, first, last, row.raw_high);
  if (k > 0) {
    piece.raw_top.start(k);
    collect(row.raw, first, last, piece.raw_top);
  }
  if (row.mode == Mode::kTopK) {
    piece.top.start(row.request->top_k);
    collect(row.values, first, last, piece.top);
  } else if (row.mode == Mode::kWalk && row.top_p) {
    measure_buckets(row, first, last, piece.bucket_mass);
  }
}

// Mass that top-p must reach; at least the first id is kept.
double mass_target(const Row& row) { return std::max(row.request->top_p * double(row.mass), 0.5); }

// Find the bucket in which the mass reaches top_p of the whole.
void find_end_bucket(Row& row, const Piece* pieces, int64_t count) {
  int64_t mass[kBuckets] = {};
  for (int64_t p = 0; p < count; p++) {
    for (int b = 0; b < kBuckets; b++) mass[b] += pieces[p].bucket_mass[b];
  }
  row.mass = 0;
  for (int b = 0; b < kBuckets; b++) row.mass += mass[b];
  double target = mass_target(row);
  int64_t before = 0;
  for (row.end_bucket = 0; row.end_bucket < kBuckets - 1 && double(before + mass[row.end_bucket]) < target; row.end_bucket++) {
    before += mass[row.end_bucket];
  }
  row.mass_before = before;
}

void try_id(const Row& row, int32_t id, float x, double& bar, Best& best) {
  if (x < row.floor || x + exact::kMaxNoise < bar) return;
  uint64_t bits = exact::noise_bits(row.key, id);
  if (x + exact::gumbel_bound(bits) < bar) return;
  double score = double(x) + exact::gumbel(bits);
  best.offer(score, id);
  bar = std::max(bar, score);
}

void raise_hint(Row& row, double score) {
  double seen = row.hint.load(std::memory_order_relaxed);
  while (score > seen && !row.hint.compare_exchange_weak(seen, score, std::memory_order_relaxed)) {
  }
}

// False when none of 64 ids, the best of which has x = `top`, can reach the score `bar`.
bool may_win(uint64_t key, int64_t id, float top, double bar) {
  double need = (bar - 1e-6 - top) / 0.69314719 - 1;  // gumbel_bound solved for its count of leading ones
  if (need > 53) return false;
  int ones = need < 1 ? 0 : int(need);
  return ones == 0 || lanes::noise_reaches(key, id, ones);
}

// Draw among the ids that are kept for sure; collect those of the bucket that top-p cuts.
void walk(Row& row, int64_t first, int64_t last, Piece& piece) {
  double bar = row.hint.load(std::memory_order_relaxed);
  // Lowest x that top-p keeps, and the lowest that it keeps for sure.
  float kept = row.top_p ? float(row.end_bucket + 1) * -1.0f / 32 : kLowest;
  float sure = row.top_p ? float(row.end_bucket) * -1.0f / 32 : kLowest;
  float x[kWalk];
  for (int64_t i = first; i < last; i += kWalk) {
    int64_t n = std::min(kWalk, last - i);
    float top = lanes::fill_x(row.values + i, n, row.high, row.temperature, x);
    if (top < kept || top < row.floor) continue;
    bool hopeless = top == kLowest || !may_win(row.key, i, top, bar);
    if (hopeless && !row.top_p) continue;
    for (int64_t j = 0; j < n; j++) {
      if (x[j] < kept || row.values[i + j] == kLowest) continue;
      bool whole = !row.top_p || (x[j] > sure && x[j] >= exact::kWeightCutoff);
      if (whole && !hopeless) try_id(row, int32_t(i + j), x[j], bar, piece.best);
      if (!whole && x[j] >= exact::kWeightCutoff && bucket_of(x[j]) == row.end_bucket) {
        piece.top.keys.push_back(exact::order_key(row.values[i + j], i + j));
      }
    }
  }
  raise_hint(row, piece.best.score);
}

int64_t key_weight(const Row& row, uint64_t key) { return exact::weight(row.x(exact::key_logit(key))); }

// Leave in `keys` those at whose rank the mass before (plus `before`) is still below `target`: selection by weighted halving.
void cut_by_mass(const Row& row, std::vector<uint64_t>& keys, int64_t before, double target) {
  size_t low = 0, high = keys.size();  // ranks below `low` are kept, from `high` on cut
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    std::nth_element(keys.begin() + low, keys.begin() + middle, keys.begin() + high, std::greater<uint64_t>());
    int64_t upper = before;
    for (size_t i = low; i < middle; i++) upper += key_weight(row, keys[i]);
    if (double(upper) < target) {
      before = upper + key_weight(row, keys[middle]);
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  keys.resize(low);
}

void finish_draw(Row& row, Piece* pieces, int64_t count, SampleResult& out) {
  Best best;
  TopKeys all;
  for (int64_t p = 0; p < count; p++) {
    best.offer(pieces[p].best.score, pieces[p].best.id);
    all.keys.insert(all.keys.end(), pieces[p].top.keys.begin(), pieces[p].top.keys.end());
  }
  if (row.mode == Mode::kTopK) {
    all.start(row.request->top_k);
    all.cut();
    for (uint64_t key : all.keys) row.mass += row.top_p ? key_weight(row, key) : 0;
  }
  if (row.top_p) cut_by_mass(row, all.keys, row.mass_before, mass_target(row));
  double bar = row.hint.load(std::memory_order_relaxed);
  for (uint64_t key : all.keys) try_id(row, exact::key_id(key), row.x(exact::key_logit(key)), bar, best);
  out.token = best.id;
}

void finish_logprobs(const Row& row, Piece* pieces, int64_t count, SampleResult& out) {
  int64_t mass = 0;
  TopKeys top;
  for (int64_t p = 0; p < count; p++) {
    mass += pieces[p].raw_mass;
    top.keys.insert(top.keys.end(), pieces[p].raw_top.keys.begin(), pieces[p].raw_top.keys.end());
  }
  double log_total = exact::log(double(mass) * 0x1p-43);
  auto value = [&](int32_t id) { return float((double(row.raw[id]) - double(row.raw_high)) - log_total); };
  out.logprob = value(out.token);
  top.start(row.request->logprobs);
  top.cut();
  std::sort(top.keys.begin(), top.keys.end(), std::greater<uint64_t>());
  out.top_count = int32_t(top.keys.size());
  for (int32_t i = 0; i < out.top_count; i++) {
    out.top_ids[i] = exact::key_id(top.keys[i]);
    out.top_values[i] = value(out.top_ids[i]);
  }
}

void finish(Row& row, Piece* pieces, int64_t count, SampleResult& out) {
  out.token = -1, out.failed = true, out.top_count = 0;
  out.logprob = std::numeric_limits<float>::quiet_NaN();
  if (row.failed) return;
  out.token = row.best;
  if (row.mode != Mode::kDone) finish_draw(row, pieces, count, out);
  out.failed = out.token < 0;
  if (!out.failed && row.request->logprobs >= 0) finish_logprobs(row, pieces, count, out);
}

// The row's best id from its scanned pieces, in order: the first of the highest.
void merge_scan(Row& row, const Piece* pieces, int64_t count) {
  for (int64_t p = 0; p < count; p++) {
    const lanes::Scan& found = pieces[p].scan;
    row.failed |= found.bad;
    if (found.best >= 0 && (row.best < 0 || found.high > row.raw_high)) {
      row.raw_high = found.high, row.best = found.best;
    }
  }
  row.values = row.raw, row.high = row.raw_high;
}

}  // namespace

void sample(ThreadPool& pool, const float* logits, int64_t rows, int64_t stride, int64_t vocab, const SampleRequest* requests, int64_t n,
            SampleResult* results) {
  int64_t per_row = (vocab + kPiece - 1) / kPiece;
  std::vector<Row> work(n);
  std::vector<Piece> pieces(n * per_row);
  auto sweep = [&](auto&& visit) {
    pool.parallel(n * per_row, [&](int64_t chunk, int) {
      int64_t first = chunk % per_row * kPiece;
      visit(work[chunk / per_row], first, std::min(vocab, first + kPiece), pieces[chunk]);
    });
  };
  for (int64_t i = 0; i < n; i++) {
    work[i].request = &requests[i];
    work[i].failed = requests[i].row < 0 || requests[i].row >= rows;
    work[i].raw = logits + (work[i].failed ? 0 : requests[i].row) * stride;
  }
  sweep([&](Row& row, int64_t first, int64_t last, Piece& piece) {
    if (!row.failed) piece.scan = lanes::scan(row.raw, first, last);
  });
  pool.parallel(n, [&](int64_t i, int) {
    Row& row = work[i];
    if (row.failed) return;
    merge_scan(row, &pieces[i * per_row], per_row);
    if (!row.failed && row.request->given < 0 && is_adjusted(*row.request)) apply_adjustments(row, vocab);
    if (!row.failed) plan_row(row, vocab);
  });
  bool measured = false, walked = false;
  for (const Row& row : work) {
    measured |= !row.failed && (row.request->logprobs >= 0 || row.mode == Mode::kTopK || (row.mode == Mode::kWalk && row.top_p));
    walked |= !row.failed && row.mode == Mode::kWalk;
  }
  if (measured) sweep(measure);
  if (walked) {
    for (int64_t i = 0; i < n; i++) {
      if (!work[i].failed && work[i].mode == Mode::kWalk && work[i].top_p) find_end_bucket(work[i], &pieces[i * per_row], per_row);
    }
    sweep([](Row& row, int64_t first, int64_t last, Piece& piece) {
      if (!row.failed && row.mode == Mode::kWalk) walk(row, first, last, piece);
    });
  }
  pool.parallel(n, [&](int64_t i, int) { finish(work[i], &pieces[i * per_row], per_row, results[i]); });
}

}  // namespace ridgeline
