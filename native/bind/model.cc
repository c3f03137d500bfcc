// The model's Python face. It checks everything that crosses, the core checks nothing.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bind/arrays.h"
#include "narrows/model.h"

namespace narrows {
namespace {

constexpr int kMaxChain = 1 << 16;  // tokens drafted in a call

// A model, and the Python arrays its pointers look into.
struct Loaded {
  std::vector<nb::object> keep;
  std::unique_ptr<Model> model;
};

ModelConfig to_config(nb::dict spec, nb::dict tensors, std::vector<nb::object>& keep) {
  auto number = [&](const char* key) { return nb::cast<int>(spec[key]); };
  ModelConfig c;
  c.hidden = number("hidden_size");
  c.heads = number("num_heads");
  c.kv_heads = number("num_kv_heads");
  c.head_dim = number("head_dim");
  c.ffn = number("ffn_size");
  c.vocab = number("vocab_size");
  c.norm_eps = nb::cast<float>(spec["norm_eps"]);
  c.attention_scale = nb::cast<float>(spec["attention_scale"]);
  c.embed_scale = nb::cast<float>(spec["embed_scale"]);
  auto activation = nb::cast<std::string>(spec["activation"]);
  require(activation == "silu" || activation == "gelu_tanh", "spec: unknown activation `" + activation + "`");
  c.gelu = activation == "gelu_tanh";
  int num_layers = number("num_layers");
  for (int n : {c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, num_layers})
    require(n > 0 && n < kMaxSide, "spec: a size is out of range");
  require(c.heads % c.kv_heads == 0 && c.heads / c.kv_heads <= 24, "spec: num_heads must be 1 to 24 times num_kv_heads");
  require(c.head_dim % 16 == 0 && c.head_dim <= 512, "spec: head_dim must be a multiple of 16, at most 512");
  for (nb::handle r : spec["ropes"]) {
    RopeTable t;
    for (nb::handle f : r.attr("inv_freq")) t.inv_freq.push_back(nb::cast<float>(f));
    t.scale = nb::cast<float>(r.attr("scale"));
    require(int(t.inv_freq.size()) == c.head_dim / 2, "spec: inv_freq must hold head_dim / 2 values");
    c.ropes.push_back(t);
  }
  require(!c.ropes.empty(), "spec: no rope");

  auto find = [&](const std::string& name) -> nb::object {
    return tensors.contains(name.c_str()) ? nb::object(tensors[name.c_str()]) : nb::object();
  };
  auto matrix = [&](const std::string& name, int rows, int cols) {
    nb::object o = find(name);
    require(o.is_valid(), "missing tensor `" + name + "`");
    Matrix m = to_matrix(o, name);
    require(m.rows == rows && m.cols == cols, "tensor `" + name + "` is " + std::to_string(m.rows) + " x " +
                                                  std::to_string(m.cols) + ", expected " + std::to_string(rows) + " x " +
                                                  std::to_string(cols));
    keep.push_back(nb::object(o.attr("data")));
    return m;
  };
  auto vector = [&](const std::string& name, int n, bool needed) -> const float* {
    nb::object o = find(name);
    if (!o.is_valid()) {
      require(!needed, "missing tensor `" + name + "`");
      return nullptr;
    }
    auto v = nb::cast<Vector>(o);
    require(int(v.size()) == n,
            "tensor `" + name + "` holds " + std::to_string(v.size()) + " values, expected " + std::to_string(n));
    keep.push_back(o);
    return v.data();
  };

  c.embed = matrix("embed", c.vocab, c.hidden);
  require(!c.embed.format.sparse, "tensor `embed` is looked up by rows, which a sparse format does not allow");
  c.norm = vector("norm", c.hidden, true);
  c.embed_norm = vector("embed_norm", c.hidden, false);
  require(!c.embed_norm || num_layers == 1, "spec: a drafting head has one layer");
  int outputs = c.embed_norm && find("head").is_valid() ? nb::cast<int>(find("head").attr("rows")) : c.vocab;
  c.head = find("head").is_valid() ? matrix("head", outputs, c.hidden) : c.embed;
  auto ropes = nb::cast<std::vector<int>>(spec["layer_rope"]), windows = nb::cast<std::vector<int>>(spec["layer_window"]);
  require(int(ropes.size()) == num_layers && int(windows.size()) == num_layers,
          "spec: layer_rope and layer_window need an entry a layer");
  int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, in = c.embed_norm ? 2 * c.hidden : c.hidden;
  for (int i = 0; i < num_layers; i++) {
    std::string at = "layers." + std::to_string(i) + ".";
    Layer l;
    l.rope = ropes[i];
    l.window = windows[i];
    require(l.rope >= 0 && l.rope < int(c.ropes.size()) && l.window >= 0, "spec: layer_rope or layer_window out of range");
    l.attn_norm = vector(at + "attn_norm", c.hidden, true);
    l.ffn_norm = vector(at + "ffn_norm", c.hidden, true);
    l.attn_post_norm = vector(at + "attn_post_norm", c.hidden, false);
    l.ffn_post_norm = vector(at + "ffn_post_norm", c.hidden, false);
    l.q_bias = vector(at + "q_bias", q, false);
    l.k_bias = vector(at + "k_bias", kv, false);
    l.v_bias = vector(at + "v_bias", kv, false);
    l.q_norm = vector(at + "q_norm", c.head_dim, false);
    l.k_norm = vector(at + "k_norm", c.head_dim, false);
    l.q = matrix(at + "q", q, in);
    l.k = matrix(at + "k", kv, in);
    l.v = matrix(at + "v", kv, in);
    l.o = matrix(at + "o", c.hidden, q);
    l.gate = matrix(at + "gate", c.ffn, c.hidden);
    l.up = matrix(at + "up", c.ffn, c.hidden);
    l.down = matrix(at + "down", c.hidden, c.ffn);
    c.layers.push_back(l);
  }
  return c;
}

void init(Loaded* self, nb::dict spec, nb::dict tensors, int page_size, int num_pages, int num_threads, const std::string& isa,
          const Loaded* kv_of) {
  require(page_size == kPage, "page_size must be " + std::to_string(kPage));
  require(num_pages > 0 && num_threads > 0 && num_threads <= 256, "num_pages and num_threads must be positive");
  const OpTable* table = find_level(isa);
  new (self) Loaded;
  try {
    ModelConfig c = to_config(spec, tensors, self->keep);
    const Model* other = kv_of ? kv_of->model.get() : nullptr;
    require(!other || (other->num_pages() == num_pages && other->config().layers.size() == c.layers.size() &&
                       other->config().kv_heads == c.kv_heads && other->config().head_dim == c.head_dim),
            "kv_of: a model with other KV pages");
    self->model = std::make_unique<Model>(std::move(c), num_pages, num_threads, *table, other);
  } catch (...) {
    self->~Loaded();
    throw;
  }
}

// Of a request's pages, those of so many entries.
void check_pages(const Model& m, const int32_t* pages, int entries) {
  for (int p = 0; p * kPage < entries; p++)
    if (pages[p] < 0 || pages[p] >= m.num_pages())  // a text for each page of every step would be work for nothing
      require(false, "page_table: page " + std::to_string(pages[p]) + " does not exist");
}

// Those of a head, a row each for so many tokens; null for other models.
const float* check_features(const Model& m, const std::optional<Rows>& features, size_t rows, const char* shape) {
  require(bool(m.config().embed_norm) == bool(features), "features are what a drafting head reads, and no other model");
  require(!features || (features->shape(0) == rows && int(features->shape(1)) == m.config().hidden),
          std::string("features must be ") + shape);
  return features ? features->data() : nullptr;
}

// The arrays of a ForwardBatch, once they are known to fit the model and one another.
Batch to_batch(const Model& m, const Ids& tokens, const Ids& positions, const Ids& cu_seqlens, const Ids& context_lens,
               const Table& page_table, const Ids& logit_rows, const std::optional<Ids>& parents = std::nullopt) {
  Batch b{int(tokens.size()), int(context_lens.size()), int(page_table.shape(1)), int(logit_rows.size()), tokens.data(),
          positions.data(),   cu_seqlens.data(),        context_lens.data(),      page_table.data(),      logit_rows.data()};
  require(int(positions.size()) == b.num_tokens, "positions and tokens differ in length");
  require(int(cu_seqlens.size()) == b.num_requests + 1 && int(page_table.shape(0)) == b.num_requests,
          "cu_seqlens, context_lens and page_table disagree on the number of requests");
  require(b.cu_seqlens[0] == 0 && b.cu_seqlens[b.num_requests] == b.num_tokens, "cu_seqlens does not span the tokens");
  for (int i = 0; i < b.num_requests; i++) {
    int n = b.cu_seqlens[i + 1] - b.cu_seqlens[i];
    require(n >= 0 && b.context_lens[i] >= n && b.context_lens[i] <= b.pages_per_row * kPage,
            "context_lens: fewer entries than tokens, or more than the page table holds");
    check_pages(m, b.page_table + size_t(i) * b.pages_per_row, b.context_lens[i]);
  }
  for (int t = 0; t < b.num_tokens; t++)
    require(b.tokens[t] >= 0 && b.tokens[t] < m.config().vocab && b.positions[t] >= 0, "tokens or positions out of range");
  for (int r = 0; r < b.num_logits; r++)
    require(b.logit_rows[r] >= 0 && b.logit_rows[r] < b.num_tokens, "logit_rows out of range");
  if (!parents) return b;
  require(int(parents->size()) == b.num_tokens, "parents and tokens differ in length");
  b.parents = parents->data();
  for (int i = 0; i < b.num_requests; i++)
    for (int t = b.cu_seqlens[i]; t < b.cu_seqlens[i + 1]; t++)
      require(b.parents[t] == -1 || (b.parents[t] >= b.cu_seqlens[i] && b.parents[t] < t),
              "parents: neither -1 nor an earlier row of the same request");
  return b;
}

Array<float, 2> forward(Loaded& self, Ids tokens, Ids positions, Ids cu_seqlens, Ids context_lens, Table page_table,
                        Ids logit_rows, std::optional<Ids> parents) {
  Model& m = *self.model;
  require(!m.config().embed_norm, "a drafting head reads features: use states()");
  Batch b = to_batch(m, tokens, positions, cu_seqlens, context_lens, page_table, logit_rows, parents);
  float* logits;
  auto out = new_array<float>({size_t(b.num_logits), size_t(m.config().vocab)}, &logits);
  nb::gil_scoped_release release;
  m.forward(b, logits);
  return out;
}

using States = std::tuple<Array<float, 2>, Array<float, 2>, Array<float, 2>>;
States states(Loaded& self, Ids tokens, Ids positions, Ids cu_seqlens, Ids context_lens, Table page_table, Ids logit_rows,
              std::optional<Ids> parents, std::vector<int> layers, std::optional<Ids> final_rows, std::optional<Rows> features) {
  Model& m = *self.model;
  size_t hidden = m.config().hidden, width = layers.size() * hidden;
  Batch b = to_batch(m, tokens, positions, cu_seqlens, context_lens, page_table, logit_rows, parents);
  b.features = check_features(m, features, tokens.size(), "[T, H]");
  size_t num_final = final_rows ? final_rows->size() : 0;
  float *logits, *streams, *last;
  States out{new_array<float>({size_t(b.num_logits), size_t(m.config().head.rows)}, &logits),
             new_array<float>({layers.empty() ? 0 : size_t(b.num_tokens), width}, &streams),
             new_array<float>({num_final, hidden}, &last)};
  int num_layers = int(m.config().layers.size());
  Taps taps;
  for (size_t i = 0; i < layers.size(); i++) {
    require(layers[i] >= 0 && layers[i] <= num_layers, "layers: out of range");
    taps.push_back({layers[i], Input::residual, streams + i * hidden, width, b.num_tokens, nullptr});
  }
  for (size_t r = 0; r < num_final; r++)
    require(final_rows->data()[r] >= 0 && final_rows->data()[r] < b.num_tokens, "final_rows: out of range");
  if (num_final) taps.push_back({num_layers, Input::head, last, hidden, int(num_final), final_rows->data()});
  nb::gil_scoped_release release;
  m.forward(b, logits, &taps);
  return out;
}

std::vector<Array<float, 2>> inputs(Loaded& self, Ids tokens, Ids positions, Ids cu_seqlens, Ids context_lens, Table page_table,
                                    Ids rows, Table wanted) {
  Model& m = *self.model;
  require(!m.config().embed_norm, "a drafting head reads features: use states()");
  Batch b = to_batch(m, tokens, positions, cu_seqlens, context_lens, page_table, rows);
  int num_rows = std::exchange(b.num_logits, 0);
  Taps taps;
  int num_layers = int(m.config().layers.size());
  require(wanted.shape(1) == 2, "wanted must have two columns");
  std::vector<Array<float, 2>> out;
  for (size_t i = 0; i < wanted.shape(0); i++) {
    int layer = wanted(i, 0), which = wanted(i, 1);
    bool head = which == int(Input::head);
    require(which >= 0 && which <= int(Input::head) && layer >= 0 && layer < num_layers + head && (!head || layer == num_layers),
            "wanted: there is no input " + std::to_string(which) + " of layer " + std::to_string(layer));
    Tap tap{layer, Input(which), nullptr, size_t(m.width(Input(which))), num_rows, b.logit_rows};
    out.push_back(new_array<float>({size_t(num_rows), tap.stride}, &tap.out));
    taps.push_back(tap);
  }
  nb::gil_scoped_release release;
  m.forward(b, nullptr, &taps);
  return out;
}

using Drafts = std::tuple<Array<int32_t, 2>, Array<float, 2>, Array<int32_t, 1>, Array<float, 2>>;
Drafts chain(Loaded& self, Ids tokens, Ids context_lens, Table page_table, Ids counts, Ids ends, std::optional<Ids> ids,
             std::optional<Rows> features) {
  Model& m = *self.model;
  size_t B = tokens.size(), H = m.config().hidden;
  require(context_lens.size() == B && counts.size() == B && page_table.shape(0) == B && B > 0,
          "tokens, context_lens, counts and page_table disagree on the number of requests");
  const float* own = check_features(m, features, B, "[B, H]");
  require(!ids || int(ids->size()) == m.config().head.rows, "ids must name every output");
  Chain c{int(B),
          int(page_table.shape(1)),
          0,
          int(ends.size()),
          tokens.data(),
          context_lens.data(),
          counts.data(),
          page_table.data(),
          ends.data(),
          ids ? ids->data() : nullptr,
          own};
  for (size_t b = 0; b < B; b++) {
    require(tokens.data()[b] >= 0 && tokens.data()[b] < m.config().vocab, "tokens out of range");
    require(c.counts[b] > 0 && c.counts[b] <= kMaxChain, "counts out of range");
    c.most = std::max(c.most, c.counts[b]);
    int64_t end = int64_t(c.context_lens[b]) + c.counts[b];
    require(c.context_lens[b] >= 0 && end <= int64_t(c.pages_per_row) * kPage, "page_table: no room for what is drafted");
    check_pages(m, c.page_table + b * c.pages_per_row, int(end));
  }
  for (size_t i = 0; ids && i < ids->size(); i++) require(c.ids[i] >= 0 && c.ids[i] < m.config().vocab, "ids out of range");
  size_t most = c.most;
  float* states;
  Drafts out{new_array<int32_t>({B, most}, &c.drafted), new_array<float>({B, most}, &c.logprobs),
             new_array<int32_t>({B}, &c.lengths), new_array<float>({own ? B : 0, H}, &states)};
  c.states = own ? states : nullptr;
  nb::gil_scoped_release release;
  draft_chain(m, c);
  return out;
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Loaded>(m, "Model", "Weights, KV pages and threads of one model.")
      .def("__init__", &init, "spec"_a, "tensors"_a, "page_size"_a, "num_pages"_a, "num_threads"_a, "isa"_a = "",
           "kv_of"_a = nb::none())
      .def("forward", &forward, "tokens"_a, "positions"_a, "cu_seqlens"_a, "context_lens"_a, "page_table"_a, "logit_rows"_a,
           "parents"_a = nb::none(), "One step over a batch (see ForwardBatch): logits [R, V] as float32.")
      .def("states", &states, "tokens"_a, "positions"_a, "cu_seqlens"_a, "context_lens"_a, "page_table"_a, "logit_rows"_a,
           "parents"_a, "layers"_a, "final_rows"_a = nb::none(), "features"_a = nb::none(),
           "One step, and hidden states: logits [R, V]; the residual stream before each of `layers` (their number: behind\n"
           "the last) for all rows, [T, len(layers) * H]; what the final norm gives at `final_rows`, [E, H]. A drafting\n"
           "head reads `features` [T, H] beside the tokens.")
      .def("inputs", &inputs, "tokens"_a, "positions"_a, "cu_seqlens"_a, "context_lens"_a, "page_table"_a, "rows"_a, "wanted"_a,
           "One step without logits: for each (layer, input) of wanted [N, 2] the input of its products at these rows, as\n"
           "float32 [rows, width]. Inputs are 0 q/k/v, 1 o, 2 gate/up, 3 down, 4 head (of the layer after the last).")
      .def("draft_chain", &chain, "tokens"_a, "context_lens"_a, "page_table"_a, "counts"_a, "ends"_a, "ids"_a = nb::none(),
           "features"_a = nb::none(),
           "Reads a token of each request, takes the likeliest to follow it, reads that, and so on: counts [B] of them, or\n"
           "up to one of `ends`. context_lens [B] are before the first; logits are of `ids`. Returns tokens [B, K],\n"
           "log-probabilities [B, K], how many there are [B], and a drafting head's own states behind what it read last\n"
           "[B, H].")
      .def_prop_ro("weight_bytes", [](Loaded& l) { return l.model->weight_bytes; })
      .def_prop_ro("kv_bytes", [](Loaded& l) { return l.model->kv_bytes; })
      .def_prop_ro("kv_bytes_per_token", [](Loaded& l) { return l.model->kv_bytes_per_token(); })
      .def_prop_ro("num_pages", [](Loaded& l) { return l.model->num_pages(); });
}

}  // namespace narrows
