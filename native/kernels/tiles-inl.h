// A block of rows against a stretch on tile registers: x is the signed A tile [n][32 bytes], the decoded codes are already the
// unsigned B tile [8][64 bytes], C is [n][16] int32. Four units are in flight; the float work is that of rows_by.

template <int C, bool HALF>
inline void tile_unit(const uint8_t* codes, const int8_t* q, int32_t* out) {
  tile_zero<C>();
  tile_load<4 + C % 2>(q, kUnit);
  tile_load<6 + C % 2>(codes, 64);
  tile_dot<C, 4 + C % 2, 6 + C % 2>();
  tile_store<C>(out, 64);
}

template <int BITS, bool HALF, bool MIN>
inline void block(const Stretch& w, int units, const int8_t* q, const float* xs, const Correction* c, int n, float* acc) {
  if (n < 4) {  // too few rows to fill a tile
    for (int r = 0; r < n; r++) rows_by<1, BITS, HALF, MIN>(w, units, q + r * kUnit, xs + r, c + r, n, acc + r * kLanes);
    return;
  }
  constexpr int H = HALF ? 2 : 1, kFlight = 4;
  uint8_t m = uint8_t(n), k = HALF ? 4 : 8;
  const uint8_t rows[8] = {m, m, m, m, m, m, k, k};
  const uint16_t bytes[8] = {64, 64, 64, 64, uint16_t(4 * k), uint16_t(4 * k), 64, 64};
  set_tiles(rows, bytes);
  alignas(64) int32_t sums[kFlight][kRows * kLanes];
  int groups = units * H;
  for (int g = 0; g < groups; g += kFlight) {
    int flight = groups - g < kFlight ? groups - g : kFlight;
    auto codes = [&](int i) { return w.codes + (g + i) * (512 / H); };
    auto x = [&](int i) { return q + (g + i) / H * n * kUnit + (g + i) % H * 16; };
    tile_unit<0, HALF>(codes(0), x(0), sums[0]);
    if (flight > 1) tile_unit<1, HALF>(codes(1), x(1), sums[1]);
    if (flight > 2) tile_unit<2, HALF>(codes(2), x(2), sums[2]);
    if (flight > 3) tile_unit<3, HALF>(codes(3), x(3), sums[3]);
    for (int r = 0; r < n; r++) {
      F a = load(acc + r * kLanes);
      for (int i = 0; i < flight; i++) {
        const Correction& cr = c[(g + i) * n + r];
        I d = load_i(sums[i] + r * kLanes);
        if constexpr (!MIN) d = d + set1(cr.start);
        a = fma(load(w.scale + (g + i) * kLanes) * set1(xs[(g + i) / H * n + r]), to_f(d), a);
        if constexpr (MIN) a = fma(load(w.minimum + (g + i) * kLanes), set1(cr.sum), a);
      }
      store(acc + r * kLanes, a);
    }
  }
  release_tiles();
}
