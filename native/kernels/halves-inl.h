// Few rows against a unit, where a vector holds the codes of half a tile: as many halves at a time as leave what they add up to in
// registers.

// Where quads come from: a dense unit, or one that was spread.
template <int BITS>
struct Packed {
  const uint8_t* p;
  template <int J>
  NARROWS_INLINE P quad(int half) const {
    return dense_quad<BITS, J, P>(p + 32 * half);
  }
};
struct Unpacked {
  const uint8_t* p;
  template <int J>
  NARROWS_INLINE P quad(int half) const {
    return load_p(p + 64 * J + 32 * half);
  }
};

// Quads J.. of END from FIRST on, of V halves. Codes times bytes of activations are added up in 16 bits as far as they fit.
template <int FIT, int FIRST, int J, int END, int V, int R, class Codes>
NARROWS_INLINE void add_bytes(const Codes& c, const int8_t* high, const int8_t* low, P (&h)[V][R], P (&l)[V][R], P (&d)[V][R]) {
  if constexpr (J < END) {
    constexpr bool more = (J - FIRST) % FIT, full = (J - FIRST) % FIT == FIT - 1 || J + 1 == END;
    P q[V];
    for (int v = 0; v < V; v++) q[v] = c.template quad<J>(v);
    for (int r = 0; r < R; r++) {
      P x = four_bytes(high + r * kUnit + 4 * J);
      for (int v = 0; v < V; v++) h[v][r] = more ? plus_words(h[v][r], times_bytes(q[v], x)) : times_bytes(q[v], x);
      x = four_bytes(low + r * kUnit + 4 * J);
      for (int v = 0; v < V; v++) l[v][r] = more ? plus_words(l[v][r], times_bytes(q[v], x)) : times_bytes(q[v], x);
    }
    if constexpr (full)
      for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) d[v][r] = add_times<1>(add_times<256>(d[v][r], h[v][r]), l[v][r]);
    add_bytes<FIT, FIRST, J + 1, END>(c, high, low, h, l, d);
  }
}

// The same as words, where bytes would fit once only.
template <int J, int END, int V, int R, class Codes>
NARROWS_INLINE void add_words(const Codes& c, const int16_t* x, P (&d)[V][R]) {
  if constexpr (J < END) {
    P even[V], odd[V];
    for (int v = 0; v < V; v++) {
      P q = c.template quad<J>(v);
      even[v] = even_words(q);
      odd[v] = odd_words(q);
    }
    for (int r = 0; r < R; r++) {
      P y = two_words(x + r * kUnit + 4 * J);
      for (int v = 0; v < V; v++) d[v][r] = dot_words(d[v][r], even[v], y);
      y = two_words(x + r * kUnit + 4 * J + 2);
      for (int v = 0; v < V; v++) d[v][r] = dot_words(d[v][r], odd[v], y);
    }
    add_words<J + 1, END>(c, x, d);
  }
}

template <int BITS, int H, int V, int R, class Codes>
NARROWS_INLINE void add_halves(const Codes& c, Integers x, P (&d)[H][V][R]) {
  if constexpr (BITS < 8) {
    constexpr int FIT = BITS <= 4 ? 8 : BITS == 5 ? 4 : 2;  // 2 * 128 * (2^BITS - 1) * FIT < 2^15
    P h[V][R], l[V][R];
    add_bytes<FIT, 0, 0, 8 / H>(c, x.high, x.low, h, l, d[0]);
    if constexpr (H == 2) add_bytes<FIT, 4, 4, 8>(c, x.high, x.low, h, l, d[1]);
  } else {
    add_words<0, 8 / H>(c, x.words, d[0]);
    if constexpr (H == 2) add_words<4, 8>(c, x.words, d[1]);
  }
}

template <int R, int BITS, bool SPARSE, int H>
NARROWS_INLINE const uint8_t* add_products(const uint8_t* p, bool in_pairs, Integers x, I (&d)[H][1][R]) {
  constexpr int V = R <= (BITS < 8 ? 2 : 4) ? 2 : 1;
  alignas(64) uint8_t codes[512];
  const uint8_t* end = p + 64 * BITS;
  if constexpr (SPARSE) {
    B q[8];
    end = unpack<BITS, true>(p, in_pairs, q);
    for (int j = 0; j < 8; j++) store(codes + 64 * j, q[j]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; half += V) {
    P part[H][V][R];
    for (int h = 0; h < H; h++)
      for (int v = 0; v < V; v++)
        for (int r = 0; r < R; r++) part[h][v][r] = half_of(d[h][0][r], half + v);
    reload();
    if constexpr (SPARSE)
      add_halves<BITS>(Unpacked{codes + 32 * half}, x, part);
    else
      add_halves<BITS>(Packed<BITS>{p + 32 * half}, x, part);
    for (int h = 0; h < H; h++)
      for (int v = 0; v < V; v++)
        for (int r = 0; r < R; r++) set_half(d[h][0][r], half + v, part[h][v][r]);
  }
  return end;
}
