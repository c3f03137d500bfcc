// Selection over rows of a megabyte or more: each pass runs down the row once, in loops of independent lanes the compiler vectorises.
#include "narrows/select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace narrows {
namespace {

constexpr int kStep = 16;  // independent lanes
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

// e^x for x in [-87, 0], to a relative 2e-7, without a branch or a call.
inline float exp_negative(float x) {
  constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
  float k = x * 1.44269504f + round;
  int32_t bits;
  std::memcpy(&bits, &k, 4);
  k -= round;
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
  value += int32_t(uint32_t(bits) << 23);
  std::memcpy(&p, &value, 4);
  return p;
}

// A row's tokens in decreasing order of probability, sorted only where somebody looks: bucket b holds those whose logit is
// [b, b + 1) * kWidth below the largest; the last bucket holds the rest, which together weigh next to nothing.
class Ranking {
 public:
  // A place in the order: how many tokens and how much weight (the likeliest token has 1) lie before it.
  struct Cut {
    int count;
    double mass;
  };

  Ranking(const float* logits, int n, float max, float temperature) : logits_(logits), weights_(n), order_(n) {
    const float inverse = 1 / temperature;
    std::vector<uint8_t> bucket(n);
    for (int i = 0; i < n; i++) {
      float d = (logits[i] - max) * inverse;
      float c = d > -kFloor ? d : -kFloor;  // NaN ends up here too
      float w = exp_negative(c);
      weights_[i] = d > -kFloor ? w : 0.0f;
      int b = int(c * (-1 / kWidth));
      bucket[i] = uint8_t(b < kBuckets - 1 ? b : kBuckets - 1);
    }
    double mass[kBuckets] = {};
    int count[kBuckets] = {};
    for (int i = 0; i < n; i++) {
      count[bucket[i]]++;
      mass[bucket[i]] += weights_[i];
    }
    Cut at{0, 0};
    int next[kBuckets];
    for (int b = 0; b < kBuckets; b++) {
      start_[b] = at;
      next[b] = at.count;
      at = {at.count + count[b], at.mass + mass[b]};
    }
    start_[kBuckets] = at;
    for (int i = 0; i < n; i++) order_[next[bucket[i]]++] = i;
  }

  Cut all() const { return start_[kBuckets]; }

  // Walks the order from its beginning to the first token for which done(before, after) holds; returns that token's place in
  // the order and the cut after it, or `end` when there is none before it. `done` must be monotone.
  template <class Done>
  std::pair<int, Cut> find(Cut end, Done done) {
    for (int b = 0; b < kBuckets && start_[b].count < end.count; b++) {
      if (start_[b + 1].count < end.count && !done(start_[b + 1])) continue;
      sort(b);
      Cut at = start_[b];
      while (at.count < std::min(start_[b + 1].count, end.count)) {
        int place = at.count;
        at = {place + 1, at.mass + weights_[order_[place]]};
        if (done(at)) return {place, at};
      }
    }
    return {end.count - 1, end};
  }

  int token(int place) const { return order_[place]; }
  float weight(int place) const { return weights_[order_[place]]; }

  // The first place whose weight is below `least`, looking no further than `end`.
  Cut above(Cut end, float least) {
    for (int b = 0; b < kBuckets && start_[b].count < end.count; b++) {
      sort(b);
      Cut at = start_[b];
      for (; at.count < std::min(start_[b + 1].count, end.count); at = {at.count + 1, at.mass + weight(at.count)})
        if (weight(at.count) < least) return at;
    }
    return end;
  }

 private:
  static constexpr int kBuckets = 256;
  static constexpr float kWidth = 0.125f, kFloor = 87.0f;

  void sort(int b) {
    if (sorted_[b]) return;
    sorted_[b] = true;
    auto first = order_.begin() + start_[b].count, last = order_.begin() + start_[b + 1].count;
    auto key = [&](int i) { return std::isnan(logits_[i]) ? -kInf : logits_[i]; };
    std::sort(first, last, [&](int i, int j) {
      float x = key(i), y = key(j);
      return x != y ? x > y : i < j;
    });
  }

  const float* logits_;
  std::vector<float> weights_;
  std::vector<int> order_;
  Cut start_[kBuckets + 1];
  bool sorted_[kBuckets] = {};
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
  if (p.top_k > 0 && p.top_k < n) end = ranking.find(end, [&](auto c) { return c.count >= p.top_k; }).second;
  if (p.top_p < 1) {
    double mass = double(p.top_p) * end.mass;
    end = ranking.find(end, [&](auto c) { return c.mass >= mass; }).second;
  }
  if (p.min_p > 0) end = ranking.above(end, std::min(p.min_p, 1.0f));
  double mass = p.uniform * end.mass;
  int place = ranking.find(end, [&](auto c) { return c.mass > mass; }).first;
  while (ranking.weight(place) == 0) place--;  // rounding may leave the draw past the last token with any weight
  return ranking.token(place);
}

double log_sum_exp(const float* logits, int n) {
  const double m = largest(logits, n);
  if (std::isinf(m)) return m;
  double sum = 0;
  for (int i = 0; i < n; i++)
    if (logits[i] == logits[i]) sum += std::exp(logits[i] - m);
  return m + std::log(sum);
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
