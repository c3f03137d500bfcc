// Units of which two of every four weights are kept, without spreading the codes: the activations that they meet are picked instead,
// which takes less than half of the products. The integers are the same ones.

template <int BITS>
constexpr bool kPairs = BITS == 8 || BITS == 4;

// The dot products d of R rows with a unit at p. Codes of 8 bits and activations meet as words.
template <int R>
inline void pairs_of_words(const uint8_t* p, const int8_t* high, const int8_t* low, const int (&row)[R], I (&d)[R]) {
  alignas(32) int16_t x[R][kUnit];
  for (int r = 0; r < R; r++) {
    widen(high + row[r] * kUnit, low + row[r] * kUnit, x[r]);
    d[r] = zero_i();
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    I picked = picked_words(p, j);
    B w = words(p + 64 + 32 * j);
    for (int r = 0; r < R; r++) d[r] = dot_picked(d[r], w, picked, x[r] + 4 * j);
  }
  for (int r = 0; r < R; r++) d[r] = in_order(d[r]);
}

// Codes of 4 bits meet the two bytes of activations apart.
template <int R>
inline void pairs_of_bytes(const uint8_t* p, const int8_t* high, const int8_t* low, const int (&row)[R], I (&d)[R]) {
  alignas(32) uint8_t x[R][2][kUnit];
  P h[R], l[R], codes = zero_p();
  for (int r = 0; r < R; r++) {
    h[r] = l[r] = zero_p();
    bias(high + row[r] * kUnit, x[r][0]);
    bias(low + row[r] * kUnit, x[r][1]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    P picked = picked_bytes(p, j), w = nibbles(load_p(p + 64 + 32 * (j % 4)), j / 4);
    codes = add_bytes(codes, w);
    for (int r = 0; r < R; r++) {
      h[r] = dot_picked(h[r], w, picked, x[r][0] + 4 * j);
      l[r] = dot_picked(l[r], w, picked, x[r][1] + 4 * j);
    }
  }
  for (int r = 0; r < R; r++) d[r] = unbias(h[r], l[r], codes);
}

template <int BITS, int R>
inline void pairs(const uint8_t* p, const int8_t* high, const int8_t* low, const int (&row)[R], I (&d)[R]) {
  if constexpr (BITS == 4)
    pairs_of_bytes(p, high, low, row, d);
  else
    pairs_of_words(p, high, low, row, d);
}
