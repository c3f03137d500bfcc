// Units of which two of every four weights are kept, without spreading the codes: the activations that they meet are picked instead,
// in words, which takes less than half of the products. Which two of four columns a row keeps is half a byte of its mask. The
// integers are the same ones.

template <int BITS>
constexpr bool kPairs = BITS == 8 || BITS == 4;  // codes that become signed words in two steps

// The dot products d of R rows with a unit whose masks are at p (`in_pairs`). Returns the unit's end.
template <int R, int BITS>
inline const uint8_t* pairs(const uint8_t* p, const int8_t* high, const int8_t* low, const int (&row)[R], I (&d)[R]) {
  alignas(32) int16_t x[R][kUnit];
  for (int r = 0; r < R; r++) {
    widen(high + row[r] * kUnit, low + row[r] * kUnit, x[r]);
    d[r] = zero_i();
  }
  const uint8_t* codes = p + 64;
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    uint64_t mask;
    __builtin_memcpy(&mask, p + 8 * j, 8);
    I picked = picks(mask);
    B w = BITS == 8 ? words(codes + 32 * j) : nibbles(words(codes + 32 * (j % 4)), j / 4);
    for (int r = 0; r < R; r++) d[r] = dot_picked(d[r], w, picked, x[r] + 4 * j);
  }
  return codes + 32 * BITS;
}
