// Units of which two of every four weights are kept, without spreading the codes: the activations that they meet are picked instead,
// which takes less than half of the products. The integers are the same ones.

template <int BITS>
constexpr bool kPairs = BITS == 8 || BITS == 4;
// Tiles read together for one or two rows. Of 4 bits one at a time: two streams cost more than the tiles share.
template <int BITS>
constexpr int kTiles = BITS == 8 ? 2 : 1;

// N of the rows, from FROM on, with a unit that was unpacked.
template <int FROM, int N, int R>
NARROWS_INLINE void add_picked(const I (&picked)[8], const B (&c)[8], const int16_t* x, I (&d)[R]) {
  I sums[N];
  for (int r = 0; r < N; r++) sums[r] = zero_i();
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++)
    for (int r = 0; r < N; r++) sums[r] = dot_picked(sums[r], c[j], picked[j], x + (FROM + r) * kUnit + 4 * j);
  for (int r = 0; r < N; r++) d[FROM + r] = sums[r];
}

// The dot products d of R rows with the units of W tiles, at p and `apart` bytes from there on, their lanes not yet in_order. Codes of
// 8 bits and activations meet as words. The sums of more than four rows do not fit the registers: such a unit is unpacked once for two
// passes.
template <int R, int W>
inline void pairs_of_words(const uint8_t* p, size_t apart, const int16_t* x, I (&d)[W][R]) {
  if constexpr (R > 4) {
    static_assert(W == 1);
    I picked[8];
    B c[8];
    for (int j = 0; j < 8; j++) {
      picked[j] = picked_words(p, j);
      c[j] = words(p + 64 + 32 * j);
    }
    reload();
    add_picked<0, 4>(picked, c, x, d[0]);
    add_picked<4, R - 4>(picked, c, x, d[0]);
  } else {
    for (int w = 0; w < W; w++)
      for (int r = 0; r < R; r++) d[w][r] = zero_i();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      for (int w = 0; w < W; w++) {
        I picked = picked_words(p + w * apart, j);
        B c = words(p + w * apart + 64 + 32 * j);
        for (int r = 0; r < R; r++) d[w][r] = dot_picked(d[w][r], c, picked, x + r * kUnit + 4 * j);
      }
  }
}

// Codes of 4 bits meet the two bytes of activations apart.
template <int R, int W>
inline void pairs_of_bytes(const uint8_t* p, size_t apart, const uint8_t* x, I (&d)[W][R]) {
  P h[W][R], l[W][R], codes[W];
  for (int w = 0; w < W; w++) {
    codes[w] = zero_p();
    for (int r = 0; r < R; r++) h[w][r] = l[w][r] = zero_p();
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++)
    for (int w = 0; w < W; w++) {
      const uint8_t* unit = p + w * apart;
      P picked = picked_bytes(unit, j), c = nibbles(load_p(unit + 64 + 32 * (j % 4)), j / 4);
      codes[w] = add_bytes(codes[w], c);
      for (int r = 0; r < R; r++) {
        h[w][r] = dot_picked(h[w][r], c, picked, x + 2 * r * kUnit + 4 * j);
        l[w][r] = dot_picked(l[w][r], c, picked, x + (2 * r + 1) * kUnit + 4 * j);
      }
    }
  for (int w = 0; w < W; w++)
    for (int r = 0; r < R; r++) d[w][r] = lowered(h[w][r], l[w][r], codes[w]);
}

template <int BITS, int R, int W>
inline void pairs(const uint8_t* p, size_t apart, Integers x, I (&d)[W][R]) {
  if constexpr (BITS == 4)
    pairs_of_bytes(p, apart, x.raised, d);
  else
    pairs_of_words(p, apart, x.words, d);
}
