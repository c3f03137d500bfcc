// Attention over pages by online softmax (Milakov & Gimelshein, arXiv:1805.02867) in a fixed partition of the context.
//
// Row law: a query's result is defined by its own range alone. Scores: one fma chain over d per key. Pages in order; per page
// m' = max(m, page max), p = exp(s - m'), l = l * exp(m - m') + tree sum of p, acc = acc * exp(m - m') then one fma per key in
// order. Partitions start from nothing and are merged in order. A page a query sees nothing of leaves it as it was.

constexpr int kBlocks = kPage / kLanes;

inline uint16_t to_bf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t(u >> 16 | 64);
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void write_kv(const float* k, const float* v, int offset, int head_dim, uint16_t* page) {
  for (int d = 0; d < head_dim; d++) page[size_t(d) * kPage + offset] = to_bf16(k[d]);
  uint16_t* value = page + size_t(kPage) * head_dim + size_t(offset) * head_dim;
  for (int d = 0; d < head_dim; d++) value[d] = to_bf16(v[d]);
}

// Keys or values as stored, or decoded to floats once for many queries.
struct AsBf16 {
  const uint16_t *p, *next;  // next: the same place in the following page, fetched as this one is read
  F at(size_t i) const {
    prefetch(next + i);
    return load_bf16(p + i);
  }
};
struct AsFloat {
  const float* p;
  F at(size_t i) const { return load(p + i); }
};

// scores[i][key] = q[i] . key for Q queries and the page's 64 keys
template <int Q, class Keys>
inline void dot_keys(const float* const* q, const Keys& keys, int dim, float* scores) {
  constexpr int W = Q <= 3 ? 4 : 2;  // key vectors side by side: enough chains to hide the latency of fma, few enough registers
  for (int b = 0; b < kBlocks; b += W) {
    F a[Q][W];
    for (int i = 0; i < Q; i++)
      for (int j = 0; j < W; j++) a[i][j] = zero_f();
    for (int d = 0; d < dim; d++) {
      F k[W];
      for (int j = 0; j < W; j++) k[j] = keys.at(size_t(d) * kPage + (b + j) * kLanes);
      for (int i = 0; i < Q; i++) {
        F x = set1(q[i][d]);
        for (int j = 0; j < W; j++) a[i][j] = fma(k[j], x, a[i][j]);
      }
    }
    for (int i = 0; i < Q; i++)
      for (int j = 0; j < W; j++) store(scores + i * kPage + (b + j) * kLanes, a[i][j]);
  }
}

// acc[i] = acc[i] * shrink[i] + sum over keys t in [t0, t1) of p[i][t] * v[t], for Q queries and W vectors of dimensions
template <int Q, int W, class Values>
inline void add_columns(const float* p, const Values& values, int t0, int t1, int dim, int d, const float* shrink, Partial* out) {
  F a[Q][W];
  for (int i = 0; i < Q; i++)
    for (int j = 0; j < W; j++) a[i][j] = load(out[i].acc + d + j * kLanes) * set1(shrink[i]);
  for (int t = t0; t < t1; t++) {
    F v[W];
    for (int j = 0; j < W; j++) v[j] = values.at(size_t(t) * dim + d + j * kLanes);
    for (int i = 0; i < Q; i++) {
      F x = set1(p[i * kPage + t]);
      for (int j = 0; j < W; j++) a[i][j] = fma(v[j], x, a[i][j]);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int j = 0; j < W; j++) store(out[i].acc + d + j * kLanes, a[i][j]);
}

template <int Q, class Values>
inline void add_values(const float* p, const Values& values, int t0, int t1, int dim, const float* shrink, Partial* out) {
  constexpr int W = Q <= 3 ? 4 : 2;
  int d = 0;
  for (; d + W * kLanes <= dim; d += W * kLanes) add_columns<Q, W>(p, values, t0, t1, dim, d, shrink, out);
  for (; d < dim; d += kLanes) add_columns<Q, 1>(p, values, t0, t1, dim, d, shrink, out);
}

inline float exp_one(float x) {
  float t[16];
  store(t, exp(set1(x)));
  return t[0];
}

// Scores of one query become probabilities; returns what the accumulator must shrink by. lo and hi are within the page.
inline float soften(float* s, float scale, int lo, int hi, Partial& out) {
  constexpr float kNone = -__builtin_inff();
  F x[kBlocks];
  for (int b = 0; b < kBlocks; b++) x[b] = keep(load(s + b * kLanes) * set1(scale), lo - b * kLanes, hi - b * kLanes, kNone);
  float top = reduce_max(max(max(x[0], x[1]), max(x[2], x[3])));
  float m = top > out.max ? top : out.max;
  if (!(m > kNone)) m = 0.0f;  // every score is -inf or NaN: let exp see finite differences
  float shrink = out.max > kNone ? exp_one(out.max - m) : 0.0f;
  for (int b = 0; b < kBlocks; b++) {
    x[b] = keep(exp(x[b] - set1(m)), lo - b * kLanes, hi - b * kLanes, 0.0f);
    store(s + b * kLanes, x[b]);
  }
  out.sum = out.sum * shrink + reduce_add((x[0] + x[1]) + (x[2] + x[3]));
  out.max = m;
  return shrink;
}

template <int Q, class Keys, class Values>
inline void attend_page(const float* const* q, float scale, const Keys& keys, const Values& values, int start, const int* lo,
                        const int* hi, int dim, float* scores, Partial* out) {
  float shrink[Q];
  int t0 = kPage, t1 = 0;
  for (int i = 0; i < Q; i++) {
    t0 = lo[i] - start < t0 ? lo[i] - start : t0;
    t1 = hi[i] - start > t1 ? hi[i] - start : t1;
  }
  t0 = t0 < 0 ? 0 : t0;
  t1 = t1 > kPage ? kPage : t1;
  if (t0 >= t1) return;
  dot_keys<Q>(q, keys, dim, scores);
  for (int i = 0; i < Q; i++) {
    int a = lo[i] - start, b = hi[i] - start;
    if (a < kPage && b > 0 && a < b) {
      shrink[i] = soften(scores + i * kPage, scale, a, b, out[i]);
    } else {  // sees nothing of this page
      shrink[i] = 1.0f;
      for (int j = 0; j < kBlocks; j++) store(scores + i * kPage + j * kLanes, zero_f());
    }
  }
  add_values<Q>(scores, values, t0, t1, dim, shrink, out);
}

template <class Keys, class Values>
inline void attend_all(const float* const* q, int num_q, float scale, const Keys& keys, const Values& values, int start,
                       const int* lo, const int* hi, int dim, float* scores, Partial* out) {
  int i = 0;
  for (; i + 6 <= num_q; i += 6) attend_page<6>(q + i, scale, keys, values, start, lo + i, hi + i, dim, scores, out + i);
  switch (num_q - i) {
    case 5: return attend_page<5>(q + i, scale, keys, values, start, lo + i, hi + i, dim, scores, out + i);
    case 4: return attend_page<4>(q + i, scale, keys, values, start, lo + i, hi + i, dim, scores, out + i);
    case 3: return attend_page<3>(q + i, scale, keys, values, start, lo + i, hi + i, dim, scores, out + i);
    case 2: return attend_page<2>(q + i, scale, keys, values, start, lo + i, hi + i, dim, scores, out + i);
    case 1: return attend_page<1>(q + i, scale, keys, values, start, lo + i, hi + i, dim, scores, out + i);
  }
}

void attend(const float* const* q, int num_q, float scale, const KvView& kv, int part, const int* lo, const int* hi, Partial* out,
            void* scratch) {
  int dim = kv.head_dim, first = part * kPart, last = first + kPart, a = last, b = first;
  for (int i = 0; i < num_q; i++) {
    out[i].max = -__builtin_inff();
    out[i].sum = 0.0f;
    for (int d = 0; d < dim; d += kLanes) store(out[i].acc + d, zero_f());
    a = lo[i] < a ? lo[i] : a;
    b = hi[i] > b ? hi[i] : b;
  }
  a = a > first ? a : first;
  b = b < last ? b : last;
  auto* scores = (float*)scratch;
  float* wide = scores + 8 * kPage;
  for (int page = a / kPage; page * kPage < b; page++) {
    const uint16_t* p = kv.pages[page];
    size_t n = size_t(kPage) * dim;
    if (num_q > 12) {  // many queries share the page: widen it once
      for (size_t i = 0; i < 2 * n; i += kLanes) store(wide + i, load_bf16(p + i));
      attend_all(q, num_q, scale, AsFloat{wide}, AsFloat{wide + n}, page * kPage, lo, hi, dim, scores, out);
    } else {
      const uint16_t* next = kv.pages[page + 1 < kv.num_pages ? page + 1 : page];
      attend_all(q, num_q, scale, AsBf16{p, next}, AsBf16{p + n, next + n}, page * kPage, lo, hi, dim, scores, out);
    }
  }
}

void merge(Partial* into, const Partial& part, int dim) {
  if (part.sum == 0.0f) return;
  if (into->sum == 0.0f) {
    into->max = part.max;
    into->sum = part.sum;
    for (int d = 0; d < dim; d += kLanes) store(into->acc + d, load(part.acc + d));
    return;
  }
  float m = part.max > into->max ? part.max : into->max;
  float a = exp_one(into->max - m), b = exp_one(part.max - m);
  into->max = m;
  into->sum = into->sum * a + part.sum * b;
  for (int d = 0; d < dim; d += kLanes) store(into->acc + d, fma(load(part.acc + d), set1(b), load(into->acc + d) * set1(a)));
}

void finish(const Partial& p, int dim, float* out) {
  F inverse = set1(p.sum > 0.0f ? 1.0f / p.sum : p.sum);
  for (int d = 0; d < dim; d += kLanes) store(out + d, load(p.acc + d) * inverse);
}
