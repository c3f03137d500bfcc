// A block of rows against a stretch, in words: where no instruction multiplies unsigned by signed bytes into 32 bits, one that
// multiplies words costs half of two that multiply bytes. The codes are signed already, so that sums start from zero.

// R rows, whose words x are [unit][n][32], against one tile.
template <int R, bool HALF, bool MIN>
inline void words_by(const uint8_t* codes, const float* scale, const float* minimum, int units, const int16_t* x, const float* xs,
                     const float* values, int n, float* acc) {
  constexpr int H = HALF ? 2 : 1;
  F a[R];
  for (int r = 0; r < R; r++) a[r] = load(acc + r * kLanes);
  for (int u = 0; u < units; u++, xs += n, x += n * kUnit)
    for (int h = 0; h < H; h++, values += n, scale += kLanes, minimum += kLanes) {
      I d[R];
      for (int r = 0; r < R; r++) d[r] = zero_i();
#pragma GCC unroll 16
      for (int p = 0; p < 16 / H; p++, codes += 64) {
        B w = load_b(codes);
        for (int r = 0; r < R; r++) d[r] = dot_words(d[r], w, x + r * kUnit + h * 16 + 2 * p);
      }
      F s = load(scale);
      for (int r = 0; r < R; r++) a[r] = fma(s * set1(xs[r]), to_f(d[r]), a[r]);
      if constexpr (MIN) {
        F m = load(minimum);
        for (int r = 0; r < R; r++) a[r] = fma(m, set1(values[r]), a[r]);
      }
    }
  for (int r = 0; r < R; r++) store(acc + r * kLanes, a[r]);
}

template <int R, int W, bool HALF, bool MIN>
inline void words(const Stretch& w, int units, int bits, const Block& b) {
  const uint8_t* ahead = b.ahead;
  if (ahead)
    for (int i = 0; i < units * W * (bits + 1); i++, ahead += 64) prefetch(ahead);
  for (int i = 0; i < W; i++)
    words_by<R, HALF, MIN>(w.codes[i], w.scale[i], w.minimum[i], units, b.x.words, b.xs, b.sums.values, b.n, b.acc + i * b.apart);
}

template <int W, bool WIDE, bool HALF, bool MIN>
inline void block(const Stretch& w, int units, int bits, const Block& b) {
  int r = 0;
  for (; r + 4 <= b.n; r += 4) words<4, W, HALF, MIN>(w, units, bits, b.from(r));
  for (; r + 2 <= b.n; r += 2) words<2, W, HALF, MIN>(w, units, bits, b.from(r));
  for (; r < b.n; r++) words<1, W, HALF, MIN>(w, units, bits, b.from(r));
}
