// Products of weights in float formats: columns k, k+4, ... go to accumulator k % 4; the four are added as (0+1)+(2+3).
template <Float TYPE>
struct Columns {
  const uint8_t* p;
  F next(int k) {
    constexpr int SIZE = TYPE == Float::f32 ? 4 : 2;
    if (k % 4 == 0)
      for (int i = 0; i < SIZE / 2; i++) prefetch(p + kAhead + 64 * i);
    const uint8_t* q = p;
    p += kLanes * SIZE;
    if constexpr (TYPE == Float::f32) return load((const float*)q);
    if constexpr (TYPE == Float::f16) return load_f16((const uint16_t*)q);
    return load_bf16((const uint16_t*)q);
  }
};
struct KeptColumns {
  const uint8_t *p, *masks = nullptr;
  F next(int k) {
    if (k % kUnit == 0) {
      masks = p;
      p += 2 * kUnit;
    }
    if (k % 4 == 0)
      for (int i = 0; i < 2; i++) prefetch(p + kAhead + 64 * i);
    uint16_t mask;
    __builtin_memcpy(&mask, masks + 2 * (k % kUnit), 2);
    const uint8_t* q = p;
    p += 2 * __builtin_popcount(mask);
    return expand_bf16(q, mask);
  }
};

template <int R, class Weights>
inline void float_rows(Weights w, int cols, const float* x, float* y, size_t ldy, int lanes) {
  F a[R][4];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < 4; i++) a[r][i] = zero_f();
  int k = 0;
  for (; k + 4 <= cols; k += 4)
    for (int i = 0; i < 4; i++) {
      F v = w.next(k + i);
      for (int r = 0; r < R; r++) a[r][i] = fma(v, set1(x[size_t(r) * cols + k + i]), a[r][i]);
    }
  for (; k < cols; k++) {
    F v = w.next(k);
    for (int r = 0; r < R; r++) a[r][k % 4] = fma(v, set1(x[size_t(r) * cols + k]), a[r][k % 4]);
  }
  for (int r = 0; r < R; r++) store_part(y + r * ldy, (a[r][0] + a[r][1]) + (a[r][2] + a[r][3]), lanes);
}

template <class Weights>
inline void matmul_float(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy) {
  Layout at(w.format, w.cols);
  for (int tile = tile0; tile < tile1; tile++) {
    Weights first{w.tile(at, tile)};
    int lanes = w.rows - tile * kLanes < kLanes ? w.rows - tile * kLanes : kLanes, r = 0;
    float* out = y + tile * kLanes;
    for (; r + 4 <= x.rows; r += 4) float_rows<4>(first, w.cols, x.f + size_t(r) * w.cols, out + r * ldy, ldy, lanes);
    for (; r < x.rows; r++) float_rows<1>(first, w.cols, x.f + size_t(r) * w.cols, out + r * ldy, ldy, lanes);
  }
}
