// Products of packed weights with quantised activations.
//
// Row law: whatever the number of rows, each output is   acc = 0; for each group of columns in order:
//   acc = fma(w_scale * x_scale, float(exact integer dot product), acc);  with a minimum: acc = fma(w_min, x_scale * x_sum, acc)
// so gemv, row blocks and tiles may differ in everything but these float operations. The integer is 256 * (w . high) + w . low.

// Rows up to which codes are used straight from registers.
#if defined(NARROWS_TILES)
template <int BITS>
constexpr int kFew = 3;
#elif defined(NARROWS_WORDS)
template <int BITS>
constexpr int kFew = BITS == 5 || BITS == 6 ? 4 : 8;
#else
template <int BITS>
constexpr int kFew = 16;
#endif
constexpr int kAhead = 8192;  // bytes of software prefetch ahead of the codes

inline void load_codes(const uint8_t* p, B& v) { v = load_b(p); }
template <class V>
inline V codes(const uint8_t* p) {
  V v;
  load_codes(p, v);
  return v;
}

// Quad J of a unit, from its bit planes (format.h). V is B, or half of it.
template <int BITS, int J, class V>
inline V dense_quad(const uint8_t* p) {
  if constexpr (BITS == 8) {
    return codes<V>(p + 64 * J);
  } else if constexpr (BITS >= 4) {
    V low = codes<V>(p + 64 * (J % 4));
    low = mask(shift < J<4 ? 0 : -4>(low), 0x0f);
    if constexpr (BITS == 6) low = or_mask(low, shift<4 - J / 2 * 2>(codes<V>(p + 256 + 64 * (J % 2))), 0x30);
    if constexpr (BITS == 5) low = or_mask(low, shift<4 - J>(codes<V>(p + 256)), 0x10);
    return low;
  } else {
    V low = mask(shift<-(J / 2 * 2)>(codes<V>(p + 64 * (J % 2))), 0x03);
    if constexpr (BITS == 3) low = or_mask(low, shift<2 - J>(codes<V>(p + 128)), 0x04);
    return low;
  }
}

// Quads J.. of a unit.
template <int BITS, int J>
inline void unpack_dense(const uint8_t* p, B (&q)[8]) {
  if constexpr (J < 8) {
    q[J] = dense_quad<BITS, J, B>(p);
    unpack_dense<BITS, J + 1>(p, q);
  }
}

// Where each quad's kept codes start in a plane of W bits: a slot of its bytes holds the codes of W quads. Returns its bytes.
template <int W>
inline int places(const int (&kept)[8], int (&at)[8]) {
  int longest = 0;
  for (int s = 0; s < 8; s += W) {
    int n = 0;
    for (int j = s; j < s + W; j++) {
      at[j] = n;
      n += kept[j];
    }
    longest = longest > n ? longest : n;
  }
  return longest;
}

struct Kept {
  const uint8_t* plane[2];
  int at[2][8];
  uint64_t mask[8];
};

// Quads J.. of a sparse unit. A weight that is not kept comes out as zero, which has the code `offset`.
template <int BITS, int J>
inline void unpack_kept(const Kept& k, B (&q)[8]) {
  if constexpr (J < 8) {
    constexpr int LOW = BITS == 8 ? 8 : BITS >= 4 ? 4 : 2, HIGH = BITS - LOW;
    B code = expand(k.plane[0] + k.at[0][J], k.mask[J]);
    if constexpr (LOW < 8) code = mask(shift<-(J / LOW * LOW)>(code), (1 << LOW) - 1);
    if constexpr (HIGH > 0)
      code = or_mask(code, shift<LOW - J / HIGH * HIGH>(expand(k.plane[1] + k.at[1][J], k.mask[J])), ((1 << HIGH) - 1) << LOW);
    q[J] = flip(code, 1 << (BITS - 1));
    unpack_kept<BITS, J + 1>(k, q);
  }
}

// The eight quads of a unit; returns its end.
template <int BITS, bool SPARSE>
inline const uint8_t* unpack(const uint8_t* p, bool in_pairs, B (&q)[8]) {
  if constexpr (!SPARSE) {
    unpack_dense<BITS, 0>(p, q);
    return p + BITS * 64;
  } else {
    constexpr int LOW = BITS == 8 ? 8 : BITS >= 4 ? 4 : 2, HIGH = BITS - LOW;
    Kept k;
    int kept[8];
    if (in_pairs)  // only other levels write such units
      masks_of(p, k.mask);
    else
      __builtin_memcpy(k.mask, p, 64);
    for (int j = 0; j < 8; j++) kept[j] = __builtin_popcountll(k.mask[j]);
    k.plane[0] = p + 64;
    const uint8_t* end = k.plane[0] + places<LOW>(kept, k.at[0]);
    if constexpr (HIGH > 0) {
      k.plane[1] = end;
      end += places<HIGH>(kept, k.at[1]);
    }
    unpack_kept<BITS, 0>(k, q);
    return end + ((end - p) & 1);
  }
}

// Scales and minimums of one block, as floats. Group i of the block: half h of its unit u when groups hold 16 columns.
struct Scales {
  const uint8_t* header;
  const Layout& at;
  const Format& f;

  template <bool TWO>
  NARROWS_INLINE F at_level(size_t super, size_t plain, int i) const {
    if constexpr (!TWO) return load_f16((const uint16_t*)(header + plain) + i * kLanes);
    return load_f16((const uint16_t*)(header + super)) * to_f(load_i8((const int8_t*)(header + plain) + i * kLanes));
  }
  NARROWS_INLINE F scale(int i) const { return f.two_level ? at_level<true>(0, at.scales, i) : at_level<false>(0, at.scales, i); }
  NARROWS_INLINE F minimum(int i) const {
    return f.two_level ? at_level<true>(at.super_mins, at.mins, i) : at_level<false>(at.super_mins, at.mins, i);
  }
  int group(int u, int h) const { return f.group == 16 ? 2 * u + h : f.group == 32 ? u : u / 2; }
};

// Calls body(unit, unit within its block, scales of the block, where the unit is), which returns the unit's end, for units [u0, u1) of
// a tile, prefetching. Unit u0 begins a block, at p; returns where unit u1 does.
template <class Body>
inline const uint8_t* each_unit(const uint8_t* p, const Layout& at, const Format& f, int u0, int u1, Body body) {
  const uint8_t* header = p;
  int in_block = 0;
  for (int u = u0; u < u1; u++) {
    if (in_block == 0) {
      header = p;
      for (size_t i = 0; i < at.header; i += 64) prefetch(header + kAhead + i);
      p += at.header;
    }
    const uint8_t* end = body(u, in_block, Scales{header, at, f}, p);
    for (; p < end; p += 64) prefetch(p + kAhead);
    p = end;
    if (++in_block == at.block_units) in_block = 0;
  }
  return p;
}

// A symmetric code stands for q - offset: its dot product starts from -offset * sum(x), offset = 2^(BITS-1).
template <bool MIN>
inline I start(const int32_t* sums, int bits) {
  if constexpr (MIN) return zero_i();
  return shift_left(set1(*sums), bits - 1);
}

// Activations as integers, from a row and unit on (Activations).
struct Integers {
  const int8_t *high, *low;
  const int16_t* words;
  const uint8_t* raised;
  Integers operator+(size_t rows) const {
    return {high + rows * kUnit, low + rows * kUnit, words + rows * kUnit, raised + 2 * rows * kUnit};
  }
};

// What a block of rows needs besides the weights. The pointers are at its first row in the first unit at hand, n rows to a unit (and
// to a half, for sums); acc [tile][row][16] lie `apart` floats from tile to tile; `ahead` is what to fetch meanwhile, or null.
struct Block {
  Integers x;
  const float* xs;
  Activations::Sums sums;
  int n;
  float* acc;
  size_t apart;
  const uint8_t* ahead;

  // Unit `unit` of the block whose rows start at `row`.
  template <bool HALF>
  static Block of(const Activations& x, int row, int unit) {
    int n = x.block_rows(row / kRows);
    size_t at = size_t(row) * x.num_units() + size_t(unit) * n;
    const Activations::Sums& s = HALF ? x.half : x.unit;
    size_t i = HALF ? 2 * at : at;
    return {Integers{x.high, x.low, x.words, x.raised} + at, x.scale + at, {s.sums + i, s.values + i}, n, nullptr, 0, nullptr};
  }
  Block from(int r) const {
    return {x + r, xs + r, {sums.sums + r, sums.values + r}, n, acc + r * kLanes, apart, r ? nullptr : ahead};
  }
};

// d[h][0][r] += the dot product of row r with part h of the H of a unit, at p; returns the unit's end.
#ifdef NARROWS_WORDS
#include "kernels/halves-inl.h"
#else
template <int R, int BITS, bool SPARSE, int H>
inline const uint8_t* add_products(const uint8_t* p, bool in_pairs, Integers x, I (&d)[H][1][R]) {
  B q[8];
  const uint8_t* end = unpack<BITS, SPARSE>(p, in_pairs, q);
#pragma GCC unroll 2
  for (int h = 0; h < H; h++) {
    I d1[R];
    for (int r = 0; r < R; r++) d1[r] = zero_i();
#pragma GCC unroll 8
    for (int j = 8 / H * h; j < 8 / H * (h + 1); j++)
      for (int r = 0; r < R; r++) {
        d1[r] = dot<BITS>(d1[r], q[j], x.high + r * kUnit + 4 * j);
        d[h][0][r] = dot<BITS>(d[h][0][r], q[j], x.low + r * kUnit + 4 * j);
      }
    for (int r = 0; r < R; r++) d[h][0][r] = shift_left(d1[r], 8) + d[h][0][r];
  }
  return end;
}
#endif

#ifdef NARROWS_PAIRS
#include "kernels/pairs-inl.h"
#else
template <int BITS>
constexpr bool kPairs = false;
template <int BITS>
constexpr int kTiles = 1;
template <int BITS, int R, int W>
void pairs(const uint8_t* p, size_t apart, Integers x, I (&d)[W][R]);
F in_order(F lanes);
#endif

// Few rows: codes go from memory through registers into the dot products of R rows. PAIRS: of every four weights two are kept, and the
// others are not made up for; W tiles that lie `apart` share what rows need. Not inlined, lest its callers' needs spill its registers.
template <int R, int W, int BITS, bool SPARSE, bool HALF, bool MIN, bool PAIRS>
[[gnu::noinline]] void gemv(const uint8_t* tile, size_t apart, bool in_pairs, const Layout& at, const Format& f, const Block& b,
                            float* y, size_t ldy, int lanes) {
  F acc[W][R];
  for (int r = 0; r < R; r++)
    for (int w = 0; w < W; w++) acc[w][r] = zero_f();
  constexpr int H = HALF ? 2 : 1;
  each_unit(tile, at, f, 0, at.num_units, [&](int u, int v, Scales s, const uint8_t* p) {
    const Integers x = b.x + size_t(u) * b.n;
    const float* xs = b.xs + size_t(u) * b.n;
    size_t i = size_t(u) * H * b.n;
    I d[H][W][R];
    const uint8_t* end;
    if constexpr (PAIRS) {
      pairs<BITS>(p, apart, x, d[0]);
      end = p + 64 + 32 * BITS;
    } else {
#pragma GCC unroll 2
      for (int h = 0; h < H; h++)
        for (int r = 0; r < R; r++) d[h][0][r] = start<MIN>(b.sums.sums + i + h * b.n + r, BITS);
      end = add_products<R, BITS, SPARSE>(p, in_pairs, x, d);
    }
    for (int w = 1; w < W; w++)
      for (const uint8_t* ahead = v ? p : s.header; ahead < end; ahead += 64) prefetch(ahead + w * apart + kAhead);
#pragma GCC unroll 2
    for (int h = 0; h < H; h++) {
      for (int w = 0; w < W; w++) {
        F ws = Scales{s.header + w * apart, at, f}.scale(s.group(v, h));
        if constexpr (PAIRS) ws = in_order(ws);
        for (int r = 0; r < R; r++) acc[w][r] = fma(ws * set1(xs[r]), to_f(d[h][w][r]), acc[w][r]);
      }
      if constexpr (MIN) {
        F m = s.minimum(s.group(v, h));
        for (int r = 0; r < R; r++) acc[0][r] = fma(m, set1(b.sums.values[i + h * b.n + r]), acc[0][r]);
      }
    }
    return end;
  });
  for (int w = 0; w < W; w++)
    for (int r = 0; r < R; r++) {
      if constexpr (PAIRS) acc[w][r] = in_order(acc[w][r]);
      store_part(y + r * ldy + w * kLanes, acc[w][r], w + 1 < W ? kLanes : lanes);
    }
}

#ifdef NARROWS_WORDS
constexpr int kDepth = kStretch / 2, kUnitBytes = 1024;  // a code is a signed word
#else
constexpr int kDepth = kStretch, kUnitBytes = 512;
inline void put_codes(uint8_t* out, B quad, int /*offset*/) { store(out, quad); }
#endif

// A stretch of up to two tiles, decoded once for many rows.
struct Stretch {
  alignas(64) uint8_t codes[kPair][kDepth * kUnitBytes];  // [tile][unit][quad]
  float scale[kPair][kStretch * 2 * kLanes];              // [tile][group within the stretch, per (half) unit][lane]
  float minimum[kPair][kStretch * 2 * kLanes];
};

template <int BITS, bool SPARSE, bool HALF, bool MIN>
inline const uint8_t* decode(const uint8_t* p, bool in_pairs, const Layout& at, const Format& f, int u0, int u1, int w,
                             Stretch& out) {
  constexpr int H = HALF ? 2 : 1;
  return each_unit(p, at, f, u0, u1, [&](int u, int v, Scales s, const uint8_t* unit) {
    B q[8];
    const uint8_t* end = unpack<BITS, SPARSE>(unit, in_pairs, q);
    uint8_t* to = out.codes[w] + (u - u0) * kUnitBytes;
    for (int j = 0; j < 8; j++) put_codes(to + kUnitBytes / 8 * j, q[j], MIN ? 0 : 1 << (BITS - 1));
    for (int h = 0; h < H; h++) {
      int g = s.group(v, h), i = ((u - u0) * H + h) * kLanes;
      store(out.scale[w] + i, s.scale(g));
      if constexpr (MIN) store(out.minimum[w] + i, s.minimum(g));
    }
    return end;
  });
}

// R rows against W tiles: a broadcast of x serves W tiles, a vector of codes R rows.
template <int R, int W, bool WIDE, bool HALF, bool MIN>
inline void rows_by(const Stretch& w, int units, int bits, Block b) {
  F a[R][W];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < W; i++) a[r][i] = load(b.acc + i * b.apart + r * kLanes);
  constexpr int H = HALF ? 2 : 1;
  for (int u = 0; u < units; u++, b.x = b.x + b.n, b.xs += b.n) {
    if (b.ahead)
      for (int i = 0; i < W * (bits + 1); i++, b.ahead += 64) prefetch(b.ahead);
    for (int h = 0; h < H; h++, b.sums.sums += b.n, b.sums.values += b.n) {
      I d1[R][W], d0[R][W];
      for (int r = 0; r < R; r++)
        for (int i = 0; i < W; i++) {
          d1[r][i] = zero_i();
          d0[r][i] = start<MIN>(b.sums.sums + r, bits);
        }
#pragma GCC unroll 8
      for (int j = 0; j < 8 / H; j++) {
        B codes[W];
        for (int i = 0; i < W; i++) codes[i] = load_b(w.codes[i] + u * 512 + h * 256 + 64 * j);
        for (int r = 0; r < R; r++)
          for (int i = 0; i < W; i++) {
            d1[r][i] = dot<WIDE ? 8 : 7>(d1[r][i], codes[i], b.x.high + r * kUnit + h * 16 + 4 * j);
            d0[r][i] = dot<WIDE ? 8 : 7>(d0[r][i], codes[i], b.x.low + r * kUnit + h * 16 + 4 * j);
          }
      }
      for (int i = 0; i < W; i++) {
        F s = load(w.scale[i] + (u * H + h) * kLanes);
        for (int r = 0; r < R; r++) a[r][i] = fma(s * set1(b.xs[r]), to_f(shift_left(d1[r][i], 8) + d0[r][i]), a[r][i]);
        if constexpr (MIN) {
          F m = load(w.minimum[i] + (u * H + h) * kLanes);
          for (int r = 0; r < R; r++) a[r][i] = fma(m, set1(b.sums.values[r]), a[r][i]);
        }
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int i = 0; i < W; i++) store(b.acc + i * b.apart + r * kLanes, a[r][i]);
}

#if defined(NARROWS_TILES)
#include "kernels/tiles-inl.h"
#elif defined(NARROWS_WORDS)
#include "kernels/words-inl.h"
#else
template <int W, bool WIDE, bool HALF, bool MIN>
inline void block(const Stretch& w, int units, int bits, const Block& b) {
  int r = 0;
  for (; r + 4 <= b.n; r += 4) rows_by<4, W, WIDE, HALF, MIN>(w, units, bits, b.from(r));
  for (; r + 2 <= b.n; r += 2) rows_by<2, W, WIDE, HALF, MIN>(w, units, bits, b.from(r));
  for (; r < b.n; r++) rows_by<1, W, WIDE, HALF, MIN>(w, units, bits, b.from(r));
}
#endif

// All rows against W tiles from `tile` on.
template <int W, int BITS, bool SPARSE, bool HALF, bool MIN>
inline void gemm(const Matrix& w, const Layout& at, const Activations& x, int tile, float* y, size_t ldy, Stretch& stretch,
                 float* acc) {
  int units = at.num_units;
  size_t apart = size_t(x.rows) * kLanes;
  const uint8_t* p[W];
  bool pairs[W];
  for (int i = 0; i < W; i++) {
    p[i] = w.tile(at, tile + i);
    pairs[i] = SPARSE && w.in_pairs(tile + i);
  }
  for (size_t i = 0; i < W * apart; i += kLanes) store(acc + i, zero_f());
  for (int u0 = 0; u0 < units; u0 += kDepth) {
    int u1 = u0 + kDepth < units ? u0 + kDepth : units;
    for (int i = 0; i < W; i++) p[i] = decode<BITS, SPARSE, HALF, MIN>(p[i], pairs[i], at, w.format, u0, u1, i, stretch);
    for (int row = 0; row < x.rows; row += kRows) {
      Block b = Block::of<HALF>(x, row, u0);
      b.acc = acc + size_t(row) * kLanes;
      b.apart = apart;
      if (row == 0) b.ahead = p[u1 < units ? 0 : W - 1];
      block<W, BITS == 8, HALF, MIN>(stretch, u1 - u0, BITS, b);
    }
  }
  for (int i = 0; i < W; i++) {
    int row = (tile + i) * kLanes, lanes = w.rows - row < kLanes ? w.rows - row : kLanes;
    for (int t = 0; t < x.rows; t++) store_part(y + t * ldy + row, load(acc + i * apart + t * kLanes), lanes);
  }
}

// R rows, or as many as are left.
template <int R, int W, int BITS, bool SPARSE, bool HALF, bool MIN, bool PAIRS, class... Rest>
inline void gemv_of(int left, const Rest&... rest) {
  if constexpr (R > 1)
    if (left < R) return gemv_of<R - 1, W, BITS, SPARSE, HALF, MIN, PAIRS>(left, rest...);
  gemv<R, W, BITS, SPARSE, HALF, MIN, PAIRS>(rest...);
}

// All rows against W tiles, few at a time.
template <int W, int BITS, bool SPARSE, bool HALF, bool MIN, bool PAIRS>
inline void from_registers(const Matrix& w, const Layout& at, const Activations& x, int tile, float* y, size_t ldy, float* acc) {
  const uint8_t* p = w.tile(at, tile);
  const size_t apart = W > 1 ? w.tile(at, tile + 1) - p : 0;
  const bool pairs = SPARSE && w.in_pairs(tile);
  const int last = w.rows - (tile + W - 1) * kLanes, lanes = last < kLanes ? last : kLanes;
  constexpr int MOST = W > 1 ? 2 : PAIRS && BITS == 8 ? 8 : 4;  // at a time; those of pairs_of_words share what they unpack
  for (int row = 0; row < x.rows; row += kRows) {
    Block b = Block::of<HALF>(x, row, 0);
    b.acc = acc;
    for (int r = 0; r < b.n; r += MOST) {
      float* out = y + (row + r) * ldy + tile * kLanes;
      gemv_of<MOST, W, BITS, SPARSE, HALF, MIN, PAIRS>(b.n - r, p, apart, pairs, at, w.format, b.from(r), out, ldy, lanes);
    }
  }
}

template <int BITS, bool SPARSE, bool HALF, bool MIN>
inline void matmul_int(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch) {
  constexpr bool PAIRS = SPARSE && kPairs<BITS>;
  auto* stretch = (Stretch*)scratch;
  auto* acc = (float*)(stretch + 1);
  const Layout at(w.format, w.cols);
  const bool few = x.rows <= (SPARSE && kFew<BITS> > 4 ? 4 : kFew<BITS>);  // expanding costs more than storing what was expanded
  int tile = tile0;
  while (tile < tile1) {
    if constexpr (PAIRS)
      if (w.in_pairs(tile)) {  // what is not spread need not be stored
        bool two = kTiles<BITS> == 2 && x.rows <= 2 && tile + 1 < tile1 && w.in_pairs(tile + 1);
        if (two)
          from_registers<kTiles<BITS>, BITS, SPARSE, HALF, MIN, true>(w, at, x, tile, y, ldy, acc);
        else
          from_registers<1, BITS, SPARSE, HALF, MIN, true>(w, at, x, tile, y, ldy, acc);
        tile += two ? 2 : 1;
        continue;
      }
    if (!few) break;
    from_registers<1, BITS, SPARSE, HALF, MIN, false>(w, at, x, tile++, y, ldy, acc);
  }
  for (; tile + kPair <= tile1; tile += kPair) gemm<kPair, BITS, SPARSE, HALF, MIN>(w, at, x, tile, y, ldy, *stretch, acc);
  for (; tile < tile1; tile++) gemm<1, BITS, SPARSE, HALF, MIN>(w, at, x, tile, y, ldy, *stretch, acc);
}

template <int BITS>
inline void matmul_bits(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch) {
  bool half = w.format.group == 16;
  if (w.format.sparse)
    matmul_int<BITS, true, false, false>(w, x, tile0, tile1, y, ldy, scratch);
  else if (half && w.format.minimum)
    matmul_int<BITS, false, true, true>(w, x, tile0, tile1, y, ldy, scratch);
  else if (half)
    matmul_int<BITS, false, true, false>(w, x, tile0, tile1, y, ldy, scratch);
  else if (w.format.minimum)
    matmul_int<BITS, false, false, true>(w, x, tile0, tile1, y, ldy, scratch);
  else
    matmul_int<BITS, false, false, false>(w, x, tile0, tile1, y, ldy, scratch);
}

#include "kernels/floats-inl.h"

void matmul(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch) {
  switch (w.format.type) {
    case Float::f32: return matmul_float<Columns<Float::f32>>(w, x, tile0, tile1, y, ldy);
    case Float::f16: return matmul_float<Columns<Float::f16>>(w, x, tile0, tile1, y, ldy);
    case Float::bf16:
      if (w.format.sparse) return matmul_float<KeptColumns>(w, x, tile0, tile1, y, ldy);
      return matmul_float<Columns<Float::bf16>>(w, x, tile0, tile1, y, ldy);
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
