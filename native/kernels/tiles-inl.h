// A block of rows against a stretch on tile registers: x is the signed A tile [n][32 bytes], the decoded codes are already the
// unsigned B tile [8][64 bytes], C is [n][16] int32. Four units are in flight; the float work is that of rows_by.

template <int C>
inline void tile_unit(const uint8_t* codes, const int8_t* q, int32_t* out) {
  tile_zero<C>();
  tile_load<4 + C % 2>(q, kUnit);
  tile_load<6 + C % 2>(codes, 64);
  tile_dot<C, 4 + C % 2, 6 + C % 2>();
  tile_store<C>(out, 64);
}

template <int W, int BITS, bool HALF, bool MIN>
inline void block(const Stretch& w, int units, const Block& b) {
  if (b.n < 4) {  // too few rows to fill a tile
    for (int r = 0; r < b.n; r++) rows_by<1, W, BITS, HALF, MIN>(w, units, b.from(r));
    return;
  }
  constexpr int H = HALF ? 2 : 1, kFlight = 4;
  uint8_t m = uint8_t(b.n), k = HALF ? 4 : 8;
  const uint8_t rows[8] = {m, m, m, m, m, m, k, k};
  const uint16_t bytes[8] = {64, 64, 64, 64, uint16_t(4 * k), uint16_t(4 * k), 64, 64};
  set_tiles(rows, bytes);
  alignas(64) int32_t sums[kFlight][kRows * kLanes];
  int groups = units * H;
  const uint8_t* ahead = b.ahead;
  for (int i = 0; i < W; i++)
    for (int g = 0; g < groups; g += kFlight) {
      int flight = groups - g < kFlight ? groups - g : kFlight;
      if (ahead)
        for (int l = 0; l < kFlight / H * (BITS + 1); l++, ahead += 64) prefetch(ahead);
      auto codes = [&](int f) { return w.codes[i] + (g + f) * (512 / H); };
      auto x = [&](int f) { return b.q + (g + f) / H * b.n * kUnit + (g + f) % H * 16; };
      tile_unit<0>(codes(0), x(0), sums[0]);
      if (flight > 1) tile_unit<1>(codes(1), x(1), sums[1]);
      if (flight > 2) tile_unit<2>(codes(2), x(2), sums[2]);
      if (flight > 3) tile_unit<3>(codes(3), x(3), sums[3]);
      for (int r = 0; r < b.n; r++) {
        float* acc = b.acc + i * b.apart + r * kLanes;
        F a = load(acc);
        for (int f = 0; f < flight; f++) {
          const Correction& c = b.c[(g + f) * b.n + r];
          I d = load_i(sums[f] + r * kLanes);
          if constexpr (!MIN) d = d + set1(c.start);
          a = fma(load(w.scale[i] + (g + f) * kLanes) * set1(b.xs[(g + f) / H * b.n + r]), to_f(d), a);
          if constexpr (MIN) a = fma(load(w.minimum[i] + (g + f) * kLanes), set1(c.sum), a);
        }
        store(acc, a);
      }
    }
  release_tiles();
}
