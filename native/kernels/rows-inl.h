// Work on single rows of floats: norms, activations, rotary embedding, quantisation. Everything here is a function of one row.

// exp(x) for any finite x; 0 below -87.3. Error about 1 ulp (Cephes' polynomial after range reduction by ln 2 in two parts).
inline F exp(F x) {
  F floor_x = max(x, set1(-87.3f));
  F capped = min(floor_x, set1(88.0f));
  I n = round_i(capped * set1(1.44269504088896341f));
  F nf = to_f(n);
  F r = fma(nf, set1(-0.693359375f), capped);
  r = fma(nf, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
  return p * exp2_i(n);
}

void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  F a[4] = {zero_f(), zero_f(), zero_f(), zero_f()};
  int i = 0;
  for (; i + 64 <= n; i += 64)
    for (int j = 0; j < 4; j++) {
      F v = load(x + i + 16 * j);
      a[j] = fma(v, v, a[j]);
    }
  for (; i < n; i += 16) {
    F v = load_part(x + i, n - i < 16 ? n - i : 16);
    a[0] = fma(v, v, a[0]);
  }
  float sum = reduce_add((a[0] + a[1]) + (a[2] + a[3]));
  F s = set1(1.0f / __builtin_sqrtf(sum / float(n) + eps));
  for (i = 0; i < n; i += 16) {
    int m = n - i < 16 ? n - i : 16;
    store_part(out + i, load_part(x + i, m) * s * load_part(weight + i, m), m);
  }
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += 16) {
    int m = n - i < 16 ? n - i : 16;
    store_part(x + i, load_part(x + i, m) + load_part(y + i, m), m);
  }
}

void scale(float* x, float s, int n) {
  F v = set1(s);
  for (int i = 0; i < n; i += 16) {
    int m = n - i < 16 ? n - i : 16;
    store_part(x + i, load_part(x + i, m) * v, m);
  }
}

// silu(g) = g / (1 + e^-g);  gelu_tanh(g) = g / (1 + e^-2z), z = sqrt(2/pi) (g + 0.044715 g^3)
void glu(const float* gate, const float* up, int n, bool gelu, float* out) {
  F one = set1(1.0f);
  for (int i = 0; i < n; i += 16) {
    int m = n - i < 16 ? n - i : 16;
    F g = load_part(gate + i, m), u = load_part(up + i, m);
    F t = gelu ? set1(-1.5957691216057308f) * fma(set1(0.044715f) * g * g, g, g) : zero_f() - g;
    store_part(out + i, g / (one + exp(t)) * u, m);
  }
}

void rope(float* x, const float* cos, const float* sin, int dim) {
  int half = dim / 2;
  for (int i = 0; i < half; i += 16) {
    int m = half - i < 16 ? half - i : 16;
    F a = load_part(x + i, m), b = load_part(x + half + i, m), c = load_part(cos + i, m), s = load_part(sin + i, m);
    store_part(x + i, a * c - b * s, m);
    store_part(x + half + i, b * c + a * s, m);
  }
}

void quantize(const float* x, int t, const Activations& out) {
  int b = t / kRows, r = t % kRows, n = out.block_rows(b), units = out.num_units();
  F squares = zero_f();
  for (int i = 0; i < out.cols; i += 16) {
    F v = load_part(x + i, out.cols - i < 16 ? out.cols - i : 16);
    squares = fma(v, v, squares);
  }
  float limit = kStandOut * __builtin_sqrtf(reduce_add(squares) / float(out.cols));
  size_t first = size_t(b) * units * kRows;
  for (int u = 0; u < units; u++) {
    size_t at = first + size_t(u) * n + r;
    int left = out.cols - u * kUnit;
    F x0 = load_part(x + u * kUnit, left < 16 ? left : 16);
    F x1 = left > 16 ? load_part(x + u * kUnit + 16, left < 32 ? left - 16 : 16) : zero_f();
    float top = reduce_max(max(abs(x0), abs(x1)));
    bool usable = top > 1e-30f && top < 3e38f;  // zeros; or a row already lost, which keeps its NaN in the scale
    bool fine = usable && top > limit;
    float scale = usable ? top / (fine ? 127.0f * 256 : 127.0f) : top <= 1e-30f ? 0.0f : top - top;
    F inverse = set1(usable ? 127.0f / top : 0.0f);
    x0 = usable ? x0 * inverse : zero_f();
    x1 = usable ? x1 * inverse : zero_f();
    I h0 = round_i(x0), h1 = round_i(x1);
    store_i8(out.high + at * kUnit, h0);
    store_i8(out.high + at * kUnit + 16, h1);
    int32_t sum[2] = {reduce_add(h0), reduce_add(h1)}, low[2] = {0, 0};
    I l0 = zero_i(), l1 = zero_i();
    if (fine) {
      // Half a step is 128 of the finer ones, one more than a byte holds: the few that reach it lose a 256th of a step.
      F finer = set1(256.0f), most = set1(127.0f);
      l0 = round_i(min((x0 - to_f(h0)) * finer, most));
      l1 = round_i(min((x1 - to_f(h1)) * finer, most));
      low[0] = reduce_add(l0);
      low[1] = reduce_add(l1);
    }
    store_i8(out.low + at * kUnit, l0);
    store_i8(out.low + at * kUnit + 16, l1);
    out.fine[at] = fine;
    out.scale[at] = scale;
    out.unit.sums[at] = -(sum[0] + sum[1]);
    out.unit.low_sums[at] = -(low[0] + low[1]);
    int32_t whole[2] = {fine ? 256 * sum[0] + low[0] : sum[0], fine ? 256 * sum[1] + low[1] : sum[1]};
    out.unit.values[at] = scale * float(whole[0] + whole[1]);
    for (int h = 0; h < 2; h++) {
      size_t i = 2 * first + size_t(2 * u + h) * n + r;
      out.half.sums[i] = -sum[h];
      out.half.low_sums[i] = -low[h];
      out.half.values[i] = scale * float(whole[h]);
    }
  }
}

uint64_t sum_bytes(const uint8_t* p, size_t n) {
  I a[8] = {zero_i(), zero_i(), zero_i(), zero_i(), zero_i(), zero_i(), zero_i(), zero_i()};
  size_t i = 0;
  for (; i + 512 <= n; i += 512)
    for (int j = 0; j < 8; j++) {
      prefetch(p + i + 64 * j + 4096);
      a[j] = a[j] + load_i((const int32_t*)(p + i + 64 * j));
    }
  int32_t t[16];
  store(t, ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])));
  uint64_t sum = 0;
  for (int j = 0; j < 16; j++) sum += uint32_t(t[j]);
  return sum;
}
