// The forward pass: one team of threads, a row or a tile of outputs at a time, in phases that end when all of it is done.
#include "narrows/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "narrows/memory.h"
#include "narrows/pack.h"

namespace narrows {
namespace {
constexpr int kFewRows = 4;          // a request with at most this many rows has its context shared out by partitions
constexpr int kQueries = 24;         // queries that share the reading of a page
constexpr int kParts = 4;            // partitions of a context taken in one go
constexpr int kShares = 4;           // runs of tiles a thread gets of a large matrix
constexpr size_t kChunk = 48 << 10;  // bytes of weights handed out at a time
}  // namespace

Model::Model(ModelConfig config, int num_pages, int num_threads, const OpTable& ops, const Model* kv_of)
    : c_(std::move(config)),
      ops_(ops),
      team_(num_threads),
      num_pages_(num_pages),
      scratch_(team_.size()),
      straight_(team_.size()) {
  size_t bytes = size_t(num_pages) * kPage * kv_bytes_per_token();
  kv_ = kv_of ? kv_of->kv_ : std::shared_ptr<void>(alloc_huge(bytes), [bytes](void* p) { free_huge(p, bytes); });
  for (const Layer& l : c_.layers)
    if (std::none_of(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.window == l.window; }))
      plans_.emplace_back().window = l.window;
}

uint16_t* Model::page(int layer, int page, int head) const {
  size_t per_head = size_t(kPage) * c_.head_dim * 2;
  return static_cast<uint16_t*>(kv_.get()) + ((size_t(layer) * num_pages_ + page) * c_.kv_heads + head) * per_head;
}

void Model::reserve(const Batch& batch) {
  size_t T = batch.num_tokens, D = c_.head_dim, width = std::max(c_.hidden, c_.heads * c_.head_dim);
  x_.reserve(T * c_.hidden);
  norm_.reserve(std::max<size_t>(T, batch.num_logits) * c_.hidden);
  delta_.reserve(T * width);
  q_.reserve(T * c_.heads * D);
  attn_.reserve(T * c_.heads * D);
  k_.reserve(T * c_.kv_heads * D);
  v_.reserve(T * c_.kv_heads * D);
  gate_.reserve(T * c_.ffn);
  up_.reserve(T * c_.ffn);
  act_.reserve(T * c_.ffn);
  cos_.reserve(c_.ropes.size() * T * D / 2);
  sin_.reserve(c_.ropes.size() * T * D / 2);
  in_.reserve(T, c_.hidden).f = norm_.get();
  if (c_.embed_norm) pair_.reserve(T, 2 * c_.hidden).f = pairs_.reserve(T * 2 * c_.hidden);
  mid_.reserve(T, c_.heads * D).f = attn_.get();
  wide_.reserve(T, c_.ffn).f = act_.get();
  out_.reserve(batch.num_logits, c_.hidden).f = norm_.get();
  size_t rows = std::max(batch.num_tokens, batch.num_logits), group = c_.heads / c_.kv_heads;
  size_t queries = std::max<size_t>(kQueries, kFewRows * group);
  size_t bytes =
      std::max(matmul_scratch(rows), attention_scratch(D) + queries * (2 * D * 4 + 64) + size_t(batch.pages_per_row + 2) * 8);
  for (auto& s : scratch_) s.reserve(bytes);
  request_of_.resize(T);
  for (int b = 0; b < batch.num_requests; b++)
    for (int t = batch.cu_seqlens[b]; t < batch.cu_seqlens[b + 1]; t++) request_of_[t] = b;
  find_paths(batch);
}

void Model::plan(const Batch& batch, Plan& plan) {
  plan.items.clear();
  plan.first_partial.assign(batch.num_tokens, -1);
  plan.num_partials = 0;
  plan.entries = 0;
  int rows_per_item = std::max(1, kQueries / (c_.heads / c_.kv_heads));
  for (int b = 0; b < batch.num_requests; b++) {
    int first = batch.cu_seqlens[b], n = batch.cu_seqlens[b + 1] - first, before = batch.context_lens[b] - n;
    if (n == 0) continue;
    int low = range_low(plan, before + 1), parts0 = low / kPart, parts1 = (before + n - 1) / kPart + 1;
    if (n <= kFewRows) {
      for (int t = 0; t < n; t++) {
        plan.first_partial[first + t] = plan.num_partials;
        plan.num_partials += int64_t(c_.heads) * (parts1 - parts0);
      }
      for (int head = 0; head < c_.kv_heads; head++)
        for (int part = parts0; part < parts1; part += kParts)
          plan.items.push_back({b, head, 0, n, part, std::min(part + kParts, parts1)});
      plan.entries += uint64_t(before + n - low) * c_.kv_heads;
    } else {
      for (int row = (n - 1) / rows_per_item * rows_per_item; row >= 0; row -= rows_per_item) {  // the longest first
        int end = std::min(row + rows_per_item, n);
        for (int head = 0; head < c_.kv_heads; head++) plan.items.push_back({b, head, row, end, 0, 0});
        plan.entries += uint64_t(before + end - range_low(plan, before + row + 1)) * c_.kv_heads;
      }
    }
  }
}

// y = w x for each product; tiles of all of them are handed out in chunks.
void Model::products(Team::Member& member, std::initializer_list<Product> list) {
  int ends[4], n = 0, total = 0, step[4];
  for (const Product& p : list) {
    size_t tile_bytes = p.w->bytes() / num_tiles(p.w->rows);
    // Long runs: what a thread fetches ahead past the end of its run, the other reads again.
    step[n] = std::max<int>({1, int(kChunk / tile_bytes), num_tiles(p.w->rows) / (team_.size() * kShares)});
    if (p.x->rows > kRows) step[n] = std::max(step[n], 4);
    total += (num_tiles(p.w->rows) + step[n] - 1) / step[n];
    ends[n++] = total;
  }
  void* scratch = scratch_[member.thread].get();
  member.for_each(total, [&](int i) {
    int which = 0;
    while (i >= ends[which]) which++;
    const Product& p = list.begin()[which];
    int tile = (i - (which ? ends[which - 1] : 0)) * step[which];
    ops_.matmul(*p.w, *p.x, tile, std::min(tile + step[which], num_tiles(p.w->rows)), p.y, p.w->rows, scratch);
  });
}

void Model::embed(const Batch& batch, int t) {
  float* x = x_.get() + size_t(t) * c_.hidden;
  unpack_row(c_.embed, batch.tokens[t], x);
  if (c_.embed_scale != 1.0f) ops_.scale(x, c_.embed_scale, c_.hidden);
  int half = c_.head_dim / 2;
  for (size_t r = 0; r < c_.ropes.size(); r++) {
    size_t at = (r * batch.num_tokens + t) * half;
    for (int i = 0; i < half; i++) {
      double angle = double(batch.positions[t]) * c_.ropes[r].inv_freq[i];
      cos_.get()[at + i] = float(std::cos(angle)) * c_.ropes[r].scale;
      sin_.get()[at + i] = float(std::sin(angle)) * c_.ropes[r].scale;
    }
  }
}

void Model::enter(const Layer& layer, int t) {
  size_t at = size_t(t) * c_.hidden;
  ops_.rms_norm(x_.get() + at, layer.attn_norm, c_.norm_eps, c_.hidden, norm_.get() + at);
}

void Model::place(const Batch& batch, int index, int t) {
  const Layer& layer = c_.layers[index];
  int D = c_.head_dim, b = request_of_[t];
  float* q = q_.get() + size_t(t) * c_.heads * D;
  float* k = k_.get() + size_t(t) * c_.kv_heads * D;
  float* v = v_.get() + size_t(t) * c_.kv_heads * D;
  if (layer.q_bias) ops_.add(q, layer.q_bias, c_.heads * D);
  if (layer.k_bias) ops_.add(k, layer.k_bias, c_.kv_heads * D);
  if (layer.v_bias) ops_.add(v, layer.v_bias, c_.kv_heads * D);
  size_t angle = (size_t(layer.rope) * batch.num_tokens + t) * (D / 2);
  const float *cos = cos_.get() + angle, *sin = sin_.get() + angle;
  for (int h = 0; h < c_.heads; h++) {
    if (layer.q_norm) ops_.rms_norm(q + h * D, layer.q_norm, c_.norm_eps, D, q + h * D);
    ops_.rope(q + h * D, cos, sin, D);
  }
  int entry = batch.context_lens[b] - batch.cu_seqlens[b + 1] + t;
  int where = batch.page_table[size_t(b) * batch.pages_per_row + entry / kPage];
  for (int h = 0; h < c_.kv_heads; h++) {
    if (layer.k_norm) ops_.rms_norm(k + h * D, layer.k_norm, c_.norm_eps, D, k + h * D);
    ops_.rope(k + h * D, cos, sin, D);
    ops_.write_kv(k + h * D, v + h * D, entry % kPage, D, page(index, where, h));
  }
}

void Model::attend(int thread, const Batch& batch, const Plan& plan, int index, const Item& item) {
  int D = c_.head_dim, group = c_.heads / c_.kv_heads, num_q = (item.row1 - item.row0) * group;
  int first = batch.cu_seqlens[item.b], before = batch.context_lens[item.b] - (batch.cu_seqlens[item.b + 1] - first);
  const float* q[kQueries * 4];
  int lo[kQueries * 4], hi[kQueries * 4];
  Partial part[kQueries * 4], total[kQueries * 4];
  uint8_t* scratch = scratch_[thread].get();
  auto* acc = reinterpret_cast<float*>(scratch + (attention_scratch(D) + 63) / 64 * 64);
  for (int i = 0; i < num_q; i++) {
    int row = item.row0 + i / group, head = item.head * group + i % group;
    q[i] = q_.get() + (size_t(first + row) * c_.heads + head) * D;
    hi[i] = before + depth_[first + row] + 1;
    lo[i] = range_low(plan, hi[i]);
    part[i].acc = acc + size_t(2 * i) * D;
    total[i] = {0.0f, 0.0f, acc + size_t(2 * i + 1) * D};
  }
  int low = *std::min_element(lo, lo + num_q), high = *std::max_element(hi, hi + num_q);
  bool apart = item.part0 < item.part1;
  if (apart) {
    low = std::max(low, item.part0 * kPart);
    high = std::min(high, item.part1 * kPart);
  }
  auto* pages = reinterpret_cast<const uint16_t**>(acc + size_t(2 * num_q) * D);
  int num_pages = (high + kPage - 1) / kPage;
  for (int p = low / kPage; p < num_pages; p++)
    pages[p] = page(index, batch.page_table[size_t(item.b) * batch.pages_per_row + p], item.head);
  KvView view{pages, num_pages, D};
  auto attend_part = [&](int p) {
    if (!branches_[item.b] || (p + 1) * kPart <= before)
      return ops_.attend(q, num_q, c_.attention_scale, view, p, lo, hi, part, scratch);
    for (int i = 0; i < num_q; i += group) {
      KvView own = straighten(thread, batch, index, item.head, first + item.row0 + i / group, view);
      ops_.attend(q + i, group, c_.attention_scale, own, p, lo + i, hi + i, part + i, scratch);
    }
  };

  if (apart) {
    int n = batch.cu_seqlens[item.b + 1] - first;
    int parts0 = range_low(plan, before + 1) / kPart, num_parts = (before + n - 1) / kPart + 1 - parts0;
    for (int p = item.part0; p < item.part1; p++) {
      Partial* slot[kQueries * 4];
      for (int i = 0; i < num_q; i++) {
        int row = first + item.row0 + i / group, head = item.head * group + i % group;
        slot[i] = partials_.get() + plan.first_partial[row] + int64_t(head) * num_parts + p - parts0;
        part[i] = *slot[i];
      }
      attend_part(p);
      for (int i = 0; i < num_q; i++) *slot[i] = part[i];
    }
    return;
  }
  for (int p = low / kPart; p * kPart < high; p++) {
    attend_part(p);
    for (int i = 0; i < num_q; i++) ops_.merge(&total[i], part[i], D);
  }
  for (int i = 0; i < num_q; i++) {
    int row = item.row0 + i / group, head = item.head * group + i % group;
    ops_.finish(total[i], D, attn_.get() + (size_t(first + row) * c_.heads + head) * D);
  }
}

void Model::join(const Batch& batch, const Plan& plan, int t) {
  int D = c_.head_dim;
  float* out = attn_.get() + size_t(t) * c_.heads * D;
  if (int64_t first = plan.first_partial[t]; first >= 0) {
    int b = request_of_[t], n = batch.cu_seqlens[b + 1] - batch.cu_seqlens[b], before = batch.context_lens[b] - n;
    int num_parts = (before + n - 1) / kPart + 1 - range_low(plan, before + 1) / kPart;
    for (int h = 0; h < c_.heads; h++) {
      Partial* p = partials_.get() + first + int64_t(h) * num_parts;
      for (int i = 1; i < num_parts; i++) ops_.merge(&p[0], p[i], D);
      ops_.finish(p[0], D, out + h * D);
    }
  }
}

void Model::leave_attention(const Layer& layer, int t) {
  float *x = x_.get() + size_t(t) * c_.hidden, *d = delta_.get() + size_t(t) * c_.hidden,
        *h = norm_.get() + size_t(t) * c_.hidden;
  if (layer.attn_post_norm) ops_.rms_norm(d, layer.attn_post_norm, c_.norm_eps, c_.hidden, d);
  ops_.add(x, d, c_.hidden);
  ops_.rms_norm(x, layer.ffn_norm, c_.norm_eps, c_.hidden, h);
}

void Model::leave_ffn(const Layer& layer, int t) {
  float *x = x_.get() + size_t(t) * c_.hidden, *d = delta_.get() + size_t(t) * c_.hidden;
  if (layer.ffn_post_norm) ops_.rms_norm(d, layer.ffn_post_norm, c_.norm_eps, c_.hidden, d);
  ops_.add(x, d, c_.hidden);
}

void Model::forward(const Batch& batch, float* logits, const Taps* taps) {
  int T = batch.num_tokens, R = batch.num_logits;
  if (T == 0) return;
  reserve(batch);
  int64_t num_partials = 0;
  for (Plan& p : plans_) {
    plan(batch, p);
    num_partials = std::max(num_partials, p.num_partials);
  }
  Partial* partials = partials_.reserve(num_partials);  // layers take turns with them
  float* acc = partial_acc_.reserve(num_partials * c_.head_dim);
  for (int64_t i = 0; i < num_partials; i++) partials[i].acc = acc + i * c_.head_dim;

  team_.run([&](Team::Member& member) {
    member.for_each(T, [&](int t) {
      embed(batch, t);
      c_.embed_norm ? enter_head(batch, t) : enter(c_.layers[0], t);
    });
    const Activations* in = c_.embed_norm ? &pair_.view : &in_.view;
    for (int i = 0; i < int(c_.layers.size()); i++) {
      quantize(member, T, *in);
      const Layer& layer = c_.layers[i];
      const Plan& plan = *std::find_if(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.window == layer.window; });
      tap(member, taps, i, Input::residual, x_.get());
      tap(member, taps, i, Input::qkv, norm_.get());
      products(member, {{&layer.q, in, q_.get()}, {&layer.k, in, k_.get()}, {&layer.v, in, v_.get()}});
      member.for_each(T, [&](int t) { place(batch, i, t); });
      member.for_each(int(plan.items.size()), [&](int j) { attend(member.thread, batch, plan, i, plan.items[j]); });
      member.for_each(T, [&](int t) { join(batch, plan, t); });
      quantize(member, T, mid_.view);
      tap(member, taps, i, Input::o, attn_.get());
      products(member, {{&layer.o, &mid_.view, delta_.get()}});
      member.for_each(T, [&](int t) { leave_attention(layer, t); });
      quantize(member, T, in_.view);
      tap(member, taps, i, Input::gate_up, norm_.get());
      products(member, {{&layer.gate, &in_.view, gate_.get()}, {&layer.up, &in_.view, up_.get()}});
      quantize(member, T, wide_.view,
               [&](size_t at, int n) { ops_.glu(gate_.get() + at, up_.get() + at, n, c_.gelu, act_.get() + at); });
      tap(member, taps, i, Input::down, act_.get());
      products(member, {{&layer.down, &wide_.view, delta_.get()}});
      member.for_each(T, [&](int t) {
        leave_ffn(layer, t);
        if (i + 1 < int(c_.layers.size())) enter(c_.layers[i + 1], t);
      });
    }
    tap(member, taps, int(c_.layers.size()), Input::residual, x_.get());
    if (taps && std::any_of(taps->begin(), taps->end(), [](const Tap& t) { return t.input == Input::head; })) {
      member.for_each(T, [&](int t) {
        size_t at = size_t(t) * c_.hidden;
        ops_.rms_norm(x_.get() + at, c_.norm, c_.norm_eps, c_.hidden, norm_.get() + at);
      });
      tap(member, taps, int(c_.layers.size()), Input::head, norm_.get());
    }
    if (R == 0) return;
    member.for_each(R, [&](int r) {
      float* h = norm_.get() + size_t(r) * c_.hidden;
      ops_.rms_norm(x_.get() + size_t(batch.logit_rows[r]) * c_.hidden, c_.norm, c_.norm_eps, c_.hidden, h);
    });
    quantize(member, R, out_.view);
    products(member, {{&c_.head, &out_.view, logits}});
  });

  for (const Layer& l : c_.layers) {
    for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) weight_bytes += m->bytes();
    for (const Plan& p : plans_)
      if (p.window == l.window) kv_bytes += p.entries * c_.head_dim * 2 * sizeof(uint16_t);
  }
  if (R) weight_bytes += c_.head.bytes();
  weight_bytes += uint64_t(T) * packed_bytes(c_.embed.format, kLanes, c_.embed.cols) / kLanes;
}

}  // namespace narrows
