// Hidden states that leave a forward, and how those of a target enter the head that drafts for it.
//
// A head (EAGLE-3, https://arxiv.org/abs/2503.01840) is a model of one layer. Its row for a token reads the token's embedding
// and a feature: the state behind the token before it, which is the target's, or its own while it drafts. The feature is where
// its residual stream begins; q, k and v are made of both, each normed.
#include <cstring>

#include "narrows/model.h"

namespace narrows {

int Model::width(Input input) const {
  return input == Input::o ? c_.heads * c_.head_dim : input == Input::down ? c_.ffn : c_.hidden;
}

void Model::tap(Team::Member& member, const Taps* taps, int layer, Input input, const float* x) {
  if (!taps) return;
  size_t n = width(input);
  for (const Tap& tap : *taps)
    if (tap.layer == layer && tap.input == input)
      member.for_each(tap.num_rows, [&](int r) {
        std::memcpy(tap.out + r * tap.stride, x + (tap.rows ? tap.rows[r] : r) * n, n * sizeof(float));
      });
}

void Model::enter_head(const Batch& batch, int t) {
  size_t H = c_.hidden;
  float *x = x_.get() + t * H, *pair = pairs_.get() + t * 2 * H;
  ops_.rms_norm(x, c_.embed_norm, c_.norm_eps, c_.hidden, pair);  // of the embedding
  std::memcpy(x, batch.features + t * H, H * sizeof(float));
  ops_.rms_norm(x, c_.layers[0].attn_norm, c_.norm_eps, c_.hidden, pair + H);
}

}  // namespace narrows
