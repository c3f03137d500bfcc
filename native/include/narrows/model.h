// The whole forward of a model in one call.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "narrows/ops.h"
#include "narrows/threads.h"

namespace narrows {

struct RopeTable {
  std::vector<float> inv_freq;  // [D/2]
  float scale = 1.0f;
};

// Vectors are null where the family has none.
struct Layer {
  const float *attn_norm = nullptr, *attn_post_norm = nullptr, *ffn_norm = nullptr, *ffn_post_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  Matrix q, k, v, o, gate, up, down;
  int rope = 0, window = 0;  // index into ropes; tokens seen, 0 for all
};

struct ModelConfig {
  int hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  float norm_eps = 0, attention_scale = 0, embed_scale = 1;
  bool gelu = false;
  std::vector<RopeTable> ropes;
  std::vector<Layer> layers;
  Matrix embed, head;  // head is embed when tied
  const float* norm = nullptr;
  const float* embed_norm = nullptr;  // of a drafting head, see features.cc; null for other models
};

// See ForwardBatch in types.py. Checked by the caller: ids, pages and lengths are in range.
struct Batch {
  int num_tokens, num_requests, pages_per_row, num_logits;
  const int32_t *tokens, *positions, *cu_seqlens, *context_lens, *page_table, *logit_rows;
  const int32_t* parents = nullptr;  // [T] or null: see paths.cc
  const float* features = nullptr;   // [T, H] of a drafting head: the state behind the token before each
};

// Inputs of matrix products, and the residual stream before a layer, in float, to be copied out for some rows of a batch:
// what pruning is fitted to, and what a drafting head reads.
enum class Input { qkv, o, gate_up, down, head, residual };
struct Tap {
  int layer;  // their number, for the head, and for the stream behind the last
  Input input;
  float* out;     // [num_rows, width of the input]
  size_t stride;  // floats from a row to the next
  int num_rows;
  const int32_t* rows;  // indices into the batch's tokens; null for all
};
using Taps = std::vector<Tap>;

// Uninitialised, 64-byte aligned, grows only.
template <class T>
class Buffer {
 public:
  T* reserve(size_t n) {
    if (n > size_) {
      data_.reset(static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))));
      size_ = n;
    }
    return data_.get();
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

// Storage behind Activations.
class ActivationBuffer {
 public:
  Activations& reserve(int rows, int cols);
  Activations view;

 private:
  Buffer<int8_t> high_, low_;
  Buffer<int16_t> words_;
  Buffer<uint8_t> raised_;
  Buffer<float> scale_, values_;
  Buffer<int32_t> sums_;
};

class Model {
 public:
  // With `kv_of` its KV pages are that model's, of the same shape and number.
  Model(ModelConfig config, int num_pages, int num_threads, const OpTable& ops, const Model* kv_of = nullptr);

  void forward(const Batch& batch, float* logits, const Taps* taps = nullptr);  // logits [R, V]
  int width(Input input) const;

  size_t kv_bytes_per_token() const { return size_t(c_.layers.size()) * c_.kv_heads * c_.head_dim * 2 * sizeof(uint16_t); }
  const ModelConfig& config() const { return c_; }
  int num_pages() const { return num_pages_; }
  uint64_t weight_bytes = 0, kv_bytes = 0;  // read so far

 private:
  struct Product {
    const Matrix* w;
    const Activations* x;
    float* y;
  };
  struct Item {  // a piece of attention: rows [row0, row1) of request b, which sees `before` entries before row 0 of the request
    int b, head, row0, row1;
    int part0, part1;  // partitions of the context to leave apart, to be joined; or empty: all of them, merged in turn
  };
  // How attention is shared out, for one window size. Few rows: a piece per partition, joined afterwards; many: a piece per block
  // of rows. A row's arithmetic is the same either way.
  struct Plan {
    int window = 0;
    uint64_t entries = 0;  // KV entries read, all heads
    std::vector<Item> items;
    std::vector<int64_t> first_partial;  // [T] a row's first entry in partials_, -1 when its pieces hold all partitions
    int64_t num_partials = 0;
  };

  void reserve(const Batch& batch);
  void plan(const Batch& batch, Plan& plan);
  // The floats of `rows` rows, which make(at, n), if given, makes first: those from `at` on.
  void quantize(Team::Member& member, int rows, const Activations& into, const std::function<void(size_t, int)>& make = {});
  void products(Team::Member& member, std::initializer_list<Product> list);
  void attend(int thread, const Batch& batch, const Plan& plan, int layer, const Item& item);
  void find_paths(const Batch& batch);
  KvView straighten(int thread, const Batch& batch, int layer, int head, int t, const KvView& kv);
  void join(const Batch& batch, const Plan& plan, int t);
  void embed(const Batch& batch, int t);
  void enter(const Layer& layer, int t);             // norm before attention
  void enter_head(const Batch& batch, int t);        // the same where a drafting head begins
  void place(const Batch& batch, int layer, int t);  // biases, norms and rotation of q and k; k and v into their page
  void leave_attention(const Layer& layer, int t);   // residual, norm before the FFN
  void leave_ffn(const Layer& layer, int t);         // residual
  void tap(Team::Member& member, const Taps* taps, int layer, Input input, const float* x);  // x [T, width]
  uint16_t* page(int layer, int page, int head) const;
  int range_low(const Plan& plan, int high) const { return plan.window && high > plan.window ? high - plan.window : 0; }

  ModelConfig c_;
  const OpTable& ops_;
  Team team_;
  int num_pages_;
  std::shared_ptr<void> kv_;

  Buffer<float> x_, norm_, pairs_, delta_, q_, k_, v_, attn_, gate_, up_, act_, cos_, sin_, partial_acc_;
  Buffer<Partial> partials_;
  ActivationBuffer in_, mid_, wide_, out_;  // inputs of q/k/v and gate/up, of o, of down, of the head
  ActivationBuffer pair_;                   // of a drafting head's q/k/v
  std::vector<Buffer<uint8_t>> scratch_;    // per thread
  std::vector<Plan> plans_;                 // one per window size
  std::vector<int> request_of_;             // [T]
  std::vector<int> depth_;                  // [T] entries of the step before a row's own, of those it sees
  std::vector<bool> branches_;              // [B] not all rows see all rows before them
  std::vector<Buffer<uint8_t>> straight_;   // per thread: the last pages of a row that sees a path of a tree
};

// What `draft_chain` goes on from, and what it gives: for each of B requests the token to read next, how many of its entries are
// before it, pages for all that is to come, and how many tokens are wanted.
struct Chain {
  int num_requests, pages_per_row, most, num_ends;  // most: of counts
  const int32_t *tokens, *context_lens, *counts;    // [B]
  const int32_t *page_table, *ends;                 // [B, pages_per_row]; tokens behind which nothing is drafted
  const int32_t* ids;                               // the tokens that logits are of; null: all
  const float* features;                            // [B, H] of a drafting head, or null
  int32_t *lengths, *drafted;                       // [B], [B, most]
  float *logprobs, *states;                         // [B, most]; [B, H] the head's own behind what it read last, or null
};

// Reads each token, takes the likeliest to follow it, reads that, and so on. The last one taken is not read.
void draft_chain(Model& model, const Chain& chain);

}  // namespace narrows
