// Drafting in one call: the likeliest token, and on from it, for a few requests at once.
#include <algorithm>
#include <cstring>

#include "narrows/model.h"
#include "narrows/select.h"

namespace narrows {

void draft_chain(Model& m, const Chain& c) {
  const ModelConfig& config = m.config();
  size_t H = config.hidden, P = c.pages_per_row;
  int V = config.head.rows;
  std::vector<int> left;  // requests that are not at their end
  for (int b = 0; b < c.num_requests; b++) left.push_back(b);
  std::vector<int32_t> token(c.tokens, c.tokens + c.num_requests), at(c.context_lens, c.context_lens + c.num_requests);
  std::vector<int32_t> tokens, positions, starts, lens, table, rows;
  std::vector<float> logits(size_t(c.num_requests) * V), features, states(size_t(c.num_requests) * H);
  if (c.states) std::memcpy(c.states, c.features, size_t(c.num_requests) * H * sizeof(float));
  std::fill_n(c.lengths, c.num_requests, 0);
  while (!left.empty()) {
    int n = int(left.size());
    tokens.clear(), positions.clear(), lens.clear(), table.clear(), features.clear(), rows.clear(), starts.assign(1, 0);
    for (int b : left) {
      tokens.push_back(token[b]);
      positions.push_back(at[b]);
      lens.push_back(++at[b]);
      rows.push_back(int(rows.size()));
      starts.push_back(int(rows.size()));
      table.insert(table.end(), c.page_table + b * P, c.page_table + (b + 1) * P);
      if (c.states) features.insert(features.end(), c.states + b * H, c.states + (b + 1) * H);
    }
    Batch batch{n, n, c.pages_per_row, n, tokens.data(), positions.data(), starts.data(), lens.data(), table.data(), rows.data()};
    Taps taps;
    if (c.states) {
      batch.features = features.data();
      taps.push_back({int(config.layers.size()), Input::residual, states.data(), H, n, nullptr});
    }
    m.forward(batch, logits.data(), &taps);
    std::vector<int> going;
    for (int i = 0; i < n; i++) {
      int b = left[i], place = c.lengths[b]++;
      const float* row = logits.data() + size_t(i) * V;
      int best = argmax(row, V);
      token[b] = c.ids ? c.ids[best] : best;
      c.drafted[size_t(b) * c.most + place] = token[b];
      c.logprobs[size_t(b) * c.most + place] = float(row[best] - log_sum_exp(row, V));
      if (c.states) std::memcpy(c.states + b * H, states.data() + i * H, H * sizeof(float));
      if (c.lengths[b] < c.counts[b] && std::find(c.ends, c.ends + c.num_ends, token[b]) == c.ends + c.num_ends)
        going.push_back(b);
    }
    left = going;
  }
}

}  // namespace narrows
