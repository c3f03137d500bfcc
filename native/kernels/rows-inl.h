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

#ifndef NARROWS_WORDS
inline void put(const Activations& out, size_t at, const I (&high)[2], const I (&low)[2]) {
  for (int h = 0; h < 2; h++) {
    store_i8(out.high + at * kUnit + 16 * h, high[h]);
    store_i8(out.low + at * kUnit + 16 * h, low[h]);
  }
}
#endif

void quantize(const float* x, int t, int unit0, int unit1, const Activations& into) {
  const Activations out = into;  // bytes written may be anything of it, but not of a copy
  int b = t / kRows, r = t % kRows, n = out.block_rows(b), units = out.num_units();
  size_t first = size_t(b) * units * kRows;
  for (int u = unit0; u < unit1; u++) {
    size_t at = first + size_t(u) * n + r;
    int left = out.cols - u * kUnit;
    F v[2] = {load_part(x + u * kUnit, left < 16 ? left : 16),
              left > 16 ? load_part(x + u * kUnit + 16, left < 32 ? left - 16 : 16) : zero_f()};
    float top = reduce_max(max(abs(v[0]), abs(v[1]))), total = reduce_add(abs(v[0]) + abs(v[1]));
    bool lost = !(total < 3e38f);  // a NaN or an infinity, which the scale passes on
    bool usable = top > 1e-30f && !lost;
    F inverse = set1(usable ? 127.0f * 256 / top : 0.0f);
    float scale = usable ? top / (127.0f * 256) : lost ? __builtin_nanf("") : 0.0f;
    I high[2], low[2];
    int32_t sums[2];
    for (int h = 0; h < 2; h++) {
      I whole = usable ? round_i(v[h] * inverse) : zero_i();
      high[h] = round_i(fma(to_f(whole), set1(1.0f / 256), set1(0.25f / 256)));  // a tie goes up: low is -128 to 127
      low[h] = whole - shift_left(high[h], 8);
      sums[h] = reduce_add(whole);
      size_t i = 2 * first + size_t(2 * u + h) * n + r;
      out.half.sums[i] = -sums[h];
      out.half.values[i] = scale * float(sums[h]);
    }
    put(out, at, high, low);
    out.scale[at] = scale;
    out.unit.sums[at] = -(sums[0] + sums[1]);
    out.unit.values[at] = scale * float(sums[0] + sums[1]);
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
