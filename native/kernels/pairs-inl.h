// Units of which two of every four weights are kept, without spreading the codes: the activations that they meet are picked instead,
// which takes less than half of the products. Which two of four columns a row keeps is half a byte of its mask. The integers are the
// same ones.

template <int BITS>
constexpr bool kPairs = BITS == 8 || BITS == 4;

// The dot products d of R rows with a unit whose masks are at p (`in_pairs`). Codes of 8 bits and activations meet as words.
template <int R>
inline void pairs_of_words(const uint8_t* p, const int8_t* high, const int8_t* low, const int (&row)[R], I (&d)[R]) {
  alignas(32) int16_t x[R][kUnit];
  for (int r = 0; r < R; r++) {
    widen(high + row[r] * kUnit, low + row[r] * kUnit, x[r]);
    d[r] = zero_i();
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    I picked = picks(p + 8 * j);
    B w = words(p + 64 + 32 * j);
    for (int r = 0; r < R; r++) d[r] = dot_picked(d[r], w, picked, x[r] + 4 * j);
  }
}

// Codes of 4 bits meet the two bytes of activations apart.
template <int R>
inline void pairs_of_bytes(const uint8_t* p, const int8_t* high, const int8_t* low, const int (&row)[R], I (&d)[R]) {
  P h[R], l[R], picked[8], codes = zero_p();
  for (int r = 0; r < R; r++) h[r] = l[r] = zero_p();
  picks(p, picked);
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    P w = nibbles(load_p(p + 64 + 32 * (j % 4)), j / 4);
    codes = add_bytes(codes, w);
    for (int r = 0; r < R; r++) {
      h[r] = dot_picked(h[r], w, picked[j], high + row[r] * kUnit + 4 * j);
      l[r] = dot_picked(l[r], w, picked[j], low + row[r] * kUnit + 4 * j);
    }
  }
  for (int r = 0; r < R; r++) d[r] = unbias(h[r], l[r], codes);
}
