// A block of rows against a stretch on tile registers: x is the signed A tile [n][32 bytes], the decoded codes are already the
// unsigned B tile [8][64 bytes], C is [n][16] int32. Two units are in flight, with their two bytes; the float work is rows_by's.

template <int C>
inline void tile_unit(const uint8_t* codes, const int8_t* x, int32_t* out) {
  tile_zero<C>();
  tile_load<4 + C % 2>(x, kUnit);
  tile_load<6 + C % 2>(codes, 64);
  tile_dot<C, 4 + C % 2, 6 + C % 2>();
  tile_store<C>(out, 64);
}

template <int W, bool WIDE, bool HALF, bool MIN>
inline void block(const Stretch& w, int units, int bits, const Block& b) {
  if (b.n < 4) {  // too few rows to fill a tile
    for (int r = 0; r < b.n; r++) rows_by<1, W, WIDE, HALF, MIN>(w, units, bits, b.from(r));
    return;
  }
  constexpr int H = HALF ? 2 : 1;
  uint8_t m = uint8_t(b.n), k = HALF ? 4 : 8;
  const uint8_t rows[8] = {m, m, m, m, m, m, k, k};
  const uint16_t bytes[8] = {64, 64, 64, 64, uint16_t(4 * k), uint16_t(4 * k), 64, 64};
  set_tiles(rows, bytes);
  alignas(64) int32_t high[2][kRows * kLanes], low[2][kRows * kLanes];
  int groups = units * H;
  const uint8_t* ahead = b.ahead;
  for (int i = 0; i < W; i++)
    for (int g = 0; g < groups; g += 2) {
      if (ahead)
        for (int l = 0; l < 2 / H * (bits + 1); l++, ahead += 64) prefetch(ahead);
      int flight = groups - g < 2 ? 1 : 2;
      auto codes = [&](int f) { return w.codes[i] + (g + f) * (512 / H); };
      auto at = [&](int f) { return (g + f) / H * b.n * kUnit + (g + f) % H * 16; };
      tile_unit<0>(codes(0), b.x.high + at(0), high[0]);
      if (flight > 1) tile_unit<1>(codes(1), b.x.high + at(1), high[1]);
      tile_unit<2>(codes(0), b.x.low + at(0), low[0]);
      if (flight > 1) tile_unit<3>(codes(1), b.x.low + at(1), low[1]);
      for (int r = 0; r < b.n; r++) {
        float* acc = b.acc + i * b.apart + r * kLanes;
        F a = load(acc);
        for (int f = 0; f < flight; f++) {
          int at_sum = (g + f) * b.n + r;
          I d =
              shift_left(load_i(high[f] + r * kLanes), 8) + load_i(low[f] + r * kLanes) + start<MIN>(b.sums.sums + at_sum, bits);
          F s = load(w.scale[i] + (g + f) * kLanes);
          a = fma(s * set1(b.xs[(g + f) / H * b.n + r]), to_f(d), a);
          if constexpr (MIN) a = fma(load(w.minimum[i] + (g + f) * kLanes), set1(b.sums.values[at_sum]), a);
        }
        store(acc, a);
      }
    }
  release_tiles();
}
