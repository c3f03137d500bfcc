// Products of packed weights with quantised activations.
//
// Row law: whatever the number of rows, each output is   acc = 0; for each group of columns in order:
//   acc = fma(w_scale * x_scale, float(exact integer dot product), acc);  with a minimum: acc = fma(w_min, x_scale * x_sum, acc)
// so gemv, row blocks and tiles may differ in everything but these float operations.

#ifndef KAHEAD
#define KAHEAD 8192
#endif
constexpr int kAhead = KAHEAD;  // bytes of software prefetch ahead of the codes

// The eight quads of a unit, from its bit planes (format.h).
template <int BITS, int J = 0>
inline void unpack(const uint8_t* p, B (&q)[8]) {
  if constexpr (J < 8) {
    if constexpr (BITS == 8) {
      q[J] = load_b(p + 64 * J);
    } else if constexpr (BITS >= 4) {
      B low = load_b(p + 64 * (J % 4));
      low = mask(shift < J<4 ? 0 : -4>(low), 0x0f);
      if constexpr (BITS == 6) low = or_mask(low, shift<4 - J / 2 * 2>(load_b(p + 256 + 64 * (J % 2))), 0x30);
      if constexpr (BITS == 5) low = or_mask(low, shift<4 - J>(load_b(p + 256)), 0x10);
      q[J] = low;
    } else {
      B low = mask(shift<-(J / 2 * 2)>(load_b(p + 64 * (J % 2))), 0x03);
      if constexpr (BITS == 3) low = or_mask(low, shift<2 - J>(load_b(p + 128)), 0x04);
      q[J] = low;
    }
    unpack<BITS, J + 1>(p, q);
  }
}

// Scales and minimums of one block, as floats. Group i of the block: half h of its unit u when groups hold 16 columns.
struct Scales {
  const uint8_t* header;
  const Layout& at;
  const Format& f;

  template <bool TWO>
  F at_level(size_t super, size_t plain, int i) const {
    if constexpr (!TWO) return load_f16((const uint16_t*)(header + plain) + i * kLanes);
    return load_f16((const uint16_t*)(header + super)) * to_f(load_i8((const int8_t*)(header + plain) + i * kLanes));
  }
  F scale(int i) const { return f.two_level ? at_level<true>(0, at.scales, i) : at_level<false>(0, at.scales, i); }
  F minimum(int i) const {
    return f.two_level ? at_level<true>(at.super_mins, at.mins, i) : at_level<false>(at.super_mins, at.mins, i);
  }
  int group(int u, int h) const { return f.group == 16 ? 2 * u + h : f.group == 32 ? u : u / 2; }
};

// Calls body(unit, unit within its block, scales of the block, codes of the unit) for units [u0, u1) of a tile, prefetching.
template <int BITS, class Body>
inline void each_unit(const uint8_t* tile, const Layout& at, const Format& f, int u0, int u1, Body body) {
  int in_block = u0 % at.block_units;
  const uint8_t *header = tile + at.block(u0), *codes = tile + at.unit(u0);
  for (int u = u0; u < u1; u++) {
    if (in_block == 0)
      for (size_t i = 0; i < at.header; i += 64) prefetch(header + kAhead + i);
    for (int i = 0; i < BITS; i++) prefetch(codes + kAhead + 64 * i);
    body(u, in_block, Scales{header, at, f}, codes);
    codes += BITS * 64;
    if (++in_block == at.block_units) {
      in_block = 0;
      header = codes;
      codes += at.header;
    }
  }
}

// What a format adds to a group's dot product because codes are unsigned: an integer -offset * sum(x) to start from, or with a
// minimum the float x_scale * sum(x) to multiply it by. One entry per row and (half) unit, in the order of the activations.
union Correction {
  int32_t start;
  float sum;
};

template <bool HALF>
inline void corrections(const Format& f, const Activations& x, Correction* out) {
  const float* scale = x.scale;
  const int32_t* sum = x.sum;
  constexpr int H = HALF ? 2 : 1;
  for (int b = 0; b < x.num_blocks(); b++) {
    int n = x.block_rows(b);
    for (int u = 0; u < x.num_units(); u++, scale += n, sum += 2 * n, out += H * n)
      for (int r = 0; r < n; r++)
        for (int h = 0; h < H; h++) {
          int32_t total = HALF ? sum[2 * r + h] : sum[2 * r] + sum[2 * r + 1];
          if (f.minimum)
            out[h * n + r].sum = scale[r] * float(total);
          else
            out[h * n + r].start = -f.offset() * total;
        }
  }
}

// One row: codes go from memory through registers into the dot product.
template <int BITS, bool HALF, bool MIN>
inline void gemv(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, const Correction* c) {
  const Format f = w.format;
  const Layout at(f, w.cols);
  for (int tile = tile0; tile < tile1; tile++) {
    F acc = zero_f();
    each_unit<BITS>(w.data + tile * at.tile_bytes, at, f, 0, at.num_units, [&](int u, int v, Scales s, const uint8_t* codes) {
      B q[8];
      unpack<BITS>(codes, q);
      const int8_t* xq = x.q + u * kUnit;
      F xs = set1(x.scale[u]);
      if constexpr (HALF) {
        for (int h = 0; h < 2; h++) {
          I d = MIN ? zero_i() : set1(c[2 * u + h].start);
          for (int j = 4 * h; j < 4 * h + 4; j++) d = dot<BITS>(d, q[j], xq + 4 * j);
          acc = fma(s.scale(2 * v + h) * xs, to_f(d), acc);
          if constexpr (MIN) acc = fma(s.minimum(2 * v + h), set1(c[2 * u + h].sum), acc);
        }
      } else {
        I d = MIN ? zero_i() : set1(c[u].start), e = zero_i();
        for (int j = 0; j < 8; j += 2) {
          d = dot<BITS>(d, q[j], xq + 4 * j);
          e = dot<BITS>(e, q[j + 1], xq + 4 * j + 4);
        }
        acc = fma(s.scale(s.group(v, 0)) * xs, to_f(d + e), acc);
        if constexpr (MIN) acc = fma(s.minimum(s.group(v, 0)), set1(c[u].sum), acc);
      }
    });
    store_part(y + tile * kLanes, acc, w.rows - tile * kLanes < kLanes ? w.rows - tile * kLanes : kLanes);
  }
}

// A stretch of one tile, decoded once for many rows.
struct Stretch {
  alignas(64) uint8_t codes[kStretch * 512];  // [unit][quad][64]
  float scale[kStretch * 2 * kLanes];         // [group within the stretch, per (half) unit][lane]
  float minimum[kStretch * 2 * kLanes];
};

template <int BITS, bool HALF, bool MIN>
inline void decode(const uint8_t* tile, const Layout& at, const Format& f, int u0, int u1, Stretch& out) {
  constexpr int H = HALF ? 2 : 1;
  each_unit<BITS>(tile, at, f, u0, u1, [&](int u, int v, Scales s, const uint8_t* codes) {
    B q[8];
    unpack<BITS>(codes, q);
    for (int j = 0; j < 8; j++) store(out.codes + (u - u0) * 512 + 64 * j, q[j]);
    for (int h = 0; h < H; h++) {
      int g = s.group(v, h), i = ((u - u0) * H + h) * kLanes;
      store(out.scale + i, s.scale(g));
      if constexpr (MIN) store(out.minimum + i, s.minimum(g));
    }
  });
}

// R rows of a block against a stretch. q, xs and c point at row 0 of these R rows in the stretch's first unit; n rows a unit.
template <int R, int BITS, bool HALF, bool MIN>
inline void rows_by(const Stretch& w, int units, const int8_t* q, const float* xs, const Correction* c, int n, float* acc) {
  F a[R];
  for (int r = 0; r < R; r++) a[r] = load(acc + r * kLanes);
  constexpr int H = HALF ? 2 : 1;
  for (int u = 0; u < units; u++, q += n * kUnit, xs += n) {
    for (int h = 0; h < H; h++, c += n) {
      I d[R];
      for (int r = 0; r < R; r++) d[r] = MIN ? zero_i() : set1(c[r].start);
      const uint8_t* codes = w.codes + u * 512 + h * 256;
#pragma GCC unroll 8
      for (int j = 0; j < 8 / H; j++) {
        B wj = load_b(codes + 64 * j);
        for (int r = 0; r < R; r++) d[r] = dot<BITS>(d[r], wj, q + r * kUnit + h * 16 + 4 * j);
      }
      F s = load(w.scale + (u * H + h) * kLanes);
      for (int r = 0; r < R; r++) a[r] = fma(s * set1(xs[r]), to_f(d[r]), a[r]);
      if constexpr (MIN) {
        F m = load(w.minimum + (u * H + h) * kLanes);
        for (int r = 0; r < R; r++) a[r] = fma(m, set1(c[r].sum), a[r]);
      }
    }
  }
  for (int r = 0; r < R; r++) store(acc + r * kLanes, a[r]);
}

#ifdef NARROWS_TILES
#include "kernels/tiles-inl.h"
#else
// A block of n <= 16 rows against a stretch; acc [n][16].
template <int BITS, bool HALF, bool MIN>
inline void block(const Stretch& w, int units, const int8_t* q, const float* xs, const Correction* c, int n, float* acc) {
  int r = 0;
  for (; r + 8 <= n; r += 8) rows_by<8, BITS, HALF, MIN>(w, units, q + r * kUnit, xs + r, c + r, n, acc + r * kLanes);
  for (; r + 4 <= n; r += 4) rows_by<4, BITS, HALF, MIN>(w, units, q + r * kUnit, xs + r, c + r, n, acc + r * kLanes);
  for (; r + 2 <= n; r += 2) rows_by<2, BITS, HALF, MIN>(w, units, q + r * kUnit, xs + r, c + r, n, acc + r * kLanes);
  for (; r < n; r++) rows_by<1, BITS, HALF, MIN>(w, units, q + r * kUnit, xs + r, c + r, n, acc + r * kLanes);
}
#endif

template <int BITS, bool HALF, bool MIN>
inline void gemm(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, const Correction* c,
                 Stretch& stretch, float* acc) {
  Layout at(w.format, w.cols);
  int units = x.num_units();
  constexpr int H = HALF ? 2 : 1;
  for (int tile = tile0; tile < tile1; tile++) {
    for (int i = 0; i < x.rows; i++) store(acc + i * kLanes, zero_f());
    for (int u0 = 0; u0 < units; u0 += kStretch) {
      int u1 = u0 + kStretch < units ? u0 + kStretch : units;
      decode<BITS, HALF, MIN>(w.data + tile * at.tile_bytes, at, w.format, u0, u1, stretch);
      for (int b = 0; b < x.num_blocks(); b++) {
        int n = x.block_rows(b);
        size_t first = size_t(b) * kRows * units + size_t(u0) * n;  // (row, unit) pairs before this stretch of the block
        block<BITS, HALF, MIN>(stretch, u1 - u0, x.q + first * kUnit, x.scale + first, c + first * H, n,
                               acc + b * kRows * kLanes);
      }
    }
    int lanes = w.rows - tile * kLanes < kLanes ? w.rows - tile * kLanes : kLanes;
    for (int i = 0; i < x.rows; i++) store_part(y + i * ldy + tile * kLanes, load(acc + i * kLanes), lanes);
  }
}

template <int BITS, bool HALF, bool MIN>
inline void matmul_int(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch) {
  auto* stretch = (Stretch*)scratch;
  auto* acc = (float*)(stretch + 1);
  auto* c = (Correction*)(acc + size_t(x.rows) * kLanes);
  corrections<HALF>(w.format, x, c);
  if (x.rows == 1)
    gemv<BITS, HALF, MIN>(w, x, tile0, tile1, y, c);
  else
    gemm<BITS, HALF, MIN>(w, x, tile0, tile1, y, ldy, c, *stretch, acc);
}

template <int BITS>
inline void matmul_bits(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch) {
  bool half = w.format.group == 16;
  if (half && w.format.minimum)
    matmul_int<BITS, true, true>(w, x, tile0, tile1, y, ldy, scratch);
  else if (half)
    matmul_int<BITS, true, false>(w, x, tile0, tile1, y, ldy, scratch);
  else if (w.format.minimum)
    matmul_int<BITS, false, true>(w, x, tile0, tile1, y, ldy, scratch);
  else
    matmul_int<BITS, false, false>(w, x, tile0, tile1, y, ldy, scratch);
}

// Float formats: columns k, k+4, ... go to accumulator k % 4; the four are added as (0+1)+(2+3).
template <Float TYPE>
inline F load_weight(const uint8_t* p, int k) {
  if constexpr (TYPE == Float::f32) return load((const float*)p + k * kLanes);
  if constexpr (TYPE == Float::f16) return load_f16((const uint16_t*)p + k * kLanes);
  return load_bf16((const uint16_t*)p + k * kLanes);
}

template <Float TYPE, int R>
inline void float_rows(const uint8_t* p, int cols, const float* x, float* y, size_t ldy, int lanes) {
  F a[R][4];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < 4; i++) a[r][i] = zero_f();
  int k = 0;
  for (; k + 4 <= cols; k += 4) {
    prefetch(p + size_t(k) * kLanes * (TYPE == Float::f32 ? 4 : 2) + kAhead);
    prefetch(p + size_t(k) * kLanes * (TYPE == Float::f32 ? 4 : 2) + kAhead + 64);
    for (int i = 0; i < 4; i++) {
      F w = load_weight<TYPE>(p, k + i);
      for (int r = 0; r < R; r++) a[r][i] = fma(w, set1(x[size_t(r) * cols + k + i]), a[r][i]);
    }
  }
  for (; k < cols; k++) {
    F w = load_weight<TYPE>(p, k);
    for (int r = 0; r < R; r++) a[r][k % 4] = fma(w, set1(x[size_t(r) * cols + k]), a[r][k % 4]);
  }
  for (int r = 0; r < R; r++) store_part(y + r * ldy, (a[r][0] + a[r][1]) + (a[r][2] + a[r][3]), lanes);
}

template <Float TYPE>
inline void matmul_float(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy) {
  Layout at(w.format, w.cols);
  for (int tile = tile0; tile < tile1; tile++) {
    const uint8_t* p = w.data + size_t(tile) * at.tile_bytes;
    int lanes = w.rows - tile * kLanes < kLanes ? w.rows - tile * kLanes : kLanes, r = 0;
    float* out = y + tile * kLanes;
    for (; r + 4 <= x.rows; r += 4) float_rows<TYPE, 4>(p, w.cols, x.f + size_t(r) * w.cols, out + r * ldy, ldy, lanes);
    for (; r < x.rows; r++) float_rows<TYPE, 1>(p, w.cols, x.f + size_t(r) * w.cols, out + r * ldy, ldy, lanes);
  }
}

void matmul(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch) {
  switch (w.format.type) {
    case Float::f32: return matmul_float<Float::f32>(w, x, tile0, tile1, y, ldy);
    case Float::f16: return matmul_float<Float::f16>(w, x, tile0, tile1, y, ldy);
    case Float::bf16: return matmul_float<Float::bf16>(w, x, tile0, tile1, y, ldy);
    case Float::none: break;
  }
  switch (w.format.bits) {
    case 2: return matmul_bits<2>(w, x, tile0, tile1, y, ldy, scratch);
    case 3: return matmul_bits<3>(w, x, tile0, tile1, y, ldy, scratch);
    case 4: return matmul_bits<4>(w, x, tile0, tile1, y, ldy, scratch);
    case 5: return matmul_bits<5>(w, x, tile0, tile1, y, ldy, scratch);
    case 6: return matmul_bits<6>(w, x, tile0, tile1, y, ldy, scratch);
    case 8: return matmul_bits<8>(w, x, tile0, tile1, y, ldy, scratch);
  }
}
