// Selection over rows of a megabyte or more: each pass runs down the row once, in loops of independent lanes the compiler vectorises.
#include "narrows/select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace narrows {
namespace {

constexpr int kStep = 16;       // independent lanes
constexpr float kCold = 1e-5f;  // a temperature that leaves nothing to chance
constexpr float kInf = std::numeric_limits<float>::infinity();

float largest(const float* x, int n) {
  float m[kStep];
  std::fill(m, m + kStep, -kInf);
  int i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int j = 0; j < kStep; j++) m[j] = x[i + j] > m[j] ? x[i + j] : m[j];  // false for NaN
  for (; i < n; i++) m[0] = x[i] > m[0] ? x[i] : m[0];
  return *std::max_element(m, m + kStep);
}

constexpr float kFloor = -87.0f;  // e^x is still a normal number above

// e^x for x in (kFloor, 0], to a relative 2e-7, and 0 for kFloor; no branch and no call, so that loops over it vectorise.
inline float exp_negative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
  const int32_t keep = -int32_t(x > kFloor);
  float k = x * 1.44269504f + kRound;
  int32_t bits;
  std::memcpy(&bits, &k, 4);
  k -= kRound;
  float r = x - k * 0.693359375f + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t value;
  std::memcpy(&value, &p, 4);
  value = (value + int32_t(uint32_t(bits) << 23)) & keep;
  std::memcpy(&p, &value, 4);
  return p;
}

// A row's tokens in decreasing order of probability, sorted only where somebody looks: bucket b holds those whose logit is
// [b, b + 1) * kWidth below the largest; the last bucket holds the rest, which weighs nothing.
class Ranking {
 public:
  // A place in the order: how many tokens and how much weight (the likeliest token has 1) lie before it.
  struct Cut {
    int count;
    double mass;
  };
  struct Token {
    int id;
    float logit, weight;
  };

  Ranking(const float* logits, int n, float max, float temperature)
      : logits_(logits), n_(n), weights_(new float[n]), buckets_(new int32_t[n]) {
    const float inverse = 1 / temperature;
    float* weights = weights_.get();
    int32_t* buckets = buckets_.get();
    // Two loops: in one, the compiler would branch on the clamp and vectorise nothing. NaN is clamped, too.
    for (int i = 0; i < n; i++) {
      const float x = (logits[i] - max) * inverse;
      weights[i] = x > kFloor ? x : kFloor;
    }
    for (int i = 0; i < n; i++) {
      const float b = weights[i] * (-1 / kWidth);
      weights[i] = exp_negative(weights[i]);
      buckets[i] = int32_t(b);
    }
    // Neighbours go to sums of their own, so that an addition need not wait for the one before.
    double mass[kWays][kBuckets] = {};
    int count[kWays][kBuckets] = {};
    for (int i = 0; i < n; i++) {
      mass[i % kWays][buckets[i]] += weights[i];
      count[i % kWays][buckets[i]]++;
    }
    start_[0] = {0, 0};
    for (int b = 0; b < kBuckets; b++) {
      start_[b + 1] = start_[b];
      for (int w = 0; w < kWays; w++) {
        start_[b + 1].count += count[w][b];
        start_[b + 1].mass += mass[w][b];
      }
    }
  }

  Cut all() const { return start_[kBuckets]; }

  // The first token after which done(cut) holds, and the cut after it; when there is none before `end`, `end` and the last token
  // before it that weighs anything. done must be monotone.
  template <class Done>
  std::pair<Cut, int> find(Cut end, Done done) {
    int last = -1, passed = 0;
    for (int b = 0; b < kBuckets && start_[b].count < end.count; b++) {
      if (start_[b + 1].count == start_[b].count) continue;
      if (start_[b + 1].count < end.count && !done(start_[b + 1])) {
        passed = b;
        continue;
      }
      Cut at = start_[b];
      for (const Token& t : members(b)) {
        if (at.count == end.count) break;
        at = {at.count + 1, at.mass + t.weight};
        if (done(at)) return {at, t.id};
        if (t.weight > 0) last = t.id;
      }
    }
    return {end, last < 0 ? members(passed).back().id : last};
  }

  // The cut before the first token that weighs less than `least`, or `end`.
  Cut above(Cut end, float least) {
    int b = int(-std::log(least) / kWidth) - 1;  // one early: the logarithm rounds
    for (b = std::clamp(b, 0, kBuckets - 1); b < kBuckets && start_[b].count < end.count; b++) {
      Cut at = start_[b];
      for (const Token& t : members(b)) {
        if (at.count == end.count || t.weight < least) return at;
        at = {at.count + 1, at.mass + t.weight};
      }
    }
    return end;
  }

 private:
  static constexpr int kBuckets = 349, kWays = 4;  // 87 / kWidth + 1
  static constexpr float kWidth = 0.25f;

  const std::vector<Token>& members(int b) {
    std::vector<Token>& list = members_[b];
    if (list.empty()) {
      list.reserve(start_[b + 1].count - start_[b].count);
      for (int i = 0; i < n_; i++)
        if (buckets_[i] == b) list.push_back({i, std::isnan(logits_[i]) ? -kInf : logits_[i], weights_[i]});
      std::sort(list.begin(), list.end(),
                [](const Token& x, const Token& y) { return x.logit != y.logit ? x.logit > y.logit : x.id < y.id; });
    }
    return list;
  }

  const float* logits_;
  const int n_;
  std::unique_ptr<float[]> weights_;
  std::unique_ptr<int32_t[]> buckets_;
  Cut start_[kBuckets + 1];
  std::vector<Token> members_[kBuckets];
};

}  // namespace

int argmax(const float* logits, int n) {
  const float m = largest(logits, n);
  int i = 0;
  for (; i + kStep <= n; i += kStep) {
    int hit = 0;
    for (int j = 0; j < kStep; j++) hit |= logits[i + j] == m;
    if (hit) break;
  }
  for (; i < n; i++)
    if (logits[i] == m) return i;
  return 0;  // nothing but NaN
}

int sample(const float* logits, int n, const SampleParams& p) {
  const float max = largest(logits, n);
  if (std::isinf(max) || p.top_k == 1 || p.temperature < kCold) return argmax(logits, n);
  Ranking ranking(logits, n, max, p.temperature);
  auto end = ranking.all();
  if (p.top_k > 0 && p.top_k < n) end = ranking.find(end, [&](auto cut) { return cut.count >= p.top_k; }).first;
  if (p.top_p < 1) {
    const double mass = double(p.top_p) * end.mass;
    end = ranking.find(end, [&](auto cut) { return cut.mass >= mass; }).first;
  }
  if (p.min_p > 0) end = ranking.above(end, std::min(p.min_p, 1.0f));
  const double mass = p.uniform * end.mass;
  return ranking.find(end, [&](auto cut) { return cut.mass > mass; }).second;
}

double log_sum_exp(const float* logits, int n) {
  const float max = largest(logits, n);
  if (std::isinf(max)) return max;
  constexpr int kBlock = 256;
  double sums[kStep] = {};
  for (int begin = 0; begin < n; begin += kBlock) {
    float weights[kBlock];
    const int size = std::min(kBlock, n - begin);
    for (int i = 0; i < size; i++) {
      const float x = logits[begin + i] - max;
      weights[i] = x > kFloor ? x : kFloor;  // a loop of its own, as in Ranking
    }
    for (int i = 0; i < size; i++) weights[i] = exp_negative(weights[i]);
    std::fill(weights + size, weights + kBlock, 0.0f);
    for (int i = 0; i < kBlock; i += kStep)
      for (int j = 0; j < kStep; j++) sums[j] += weights[i + j];
  }
  return max + std::log(std::accumulate(sums, sums + kStep, 0.0));
}

void top_k(const float* logits, int n, int k, int32_t* ids, float* values) {
  struct Entry {
    float value;
    int32_t id;
  };
  auto before = [](const Entry& a, const Entry& b) { return a.value != b.value ? a.value > b.value : a.id < b.id; };
  std::vector<Entry> heap;  // the k best so far, the worst of them in front
  heap.reserve(k);
  for (int i = 0; i < n; i++) {
    float x = std::isnan(logits[i]) ? -kInf : logits[i];
    if (int(heap.size()) == k) {
      if (x <= heap.front().value) continue;
      std::pop_heap(heap.begin(), heap.end(), before);
      heap.pop_back();
    }
    heap.push_back({x, i});
    std::push_heap(heap.begin(), heap.end(), before);
  }
  std::sort_heap(heap.begin(), heap.end(), before);
  for (int j = 0; j < k; j++) {
    ids[j] = heap[j].id;
    values[j] = heap[j].value;
  }
}

}  // namespace narrows
