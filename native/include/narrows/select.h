// What the engine needs from a row of logits: argmax, top-k with log-probabilities, and a draw.
#pragma once
#include <cstdint>

namespace narrows {

struct SampleParams {
  float temperature;  // > 0; greedy rows never come here
  int top_k;          // 0: off
  float top_p;        // 1: off
  float min_p;        // 0: off
  double uniform;     // the row's random number in [0, 1)
};

// Index of the largest logit, the lowest index on ties; NaN never wins.
int argmax(const float* logits, int n);
// Draws one token: softmax(logits / temperature), cut by top_k, then top_p, then min_p, renormalised; inverse CDF at `uniform`
// over the kept tokens in order of decreasing probability (ties by index), so the draw depends on nothing else.
int sample(const float* logits, int n, const SampleParams& p);
// log(sum(exp(logits))), to about 2e-7; NaN weighs nothing.
double log_sum_exp(const float* logits, int n);
// The k largest logits in decreasing order (ties by index): ids [k], values [k].
void top_k(const float* logits, int n, int k, int32_t* ids, float* values);

}  // namespace narrows
