// Packing: checkpoint bytes or floats -> the layout of format.h. A row is decoded to codes and scales, sixteen rows make a tile.
#include "narrows/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/packing.h"

namespace narrows {
namespace {

// One row as codes and 16-bit or two-level scales, the way every integer format sees it.
struct Row {
  std::vector<uint8_t> q;                // [K, whole units] unsigned codes
  std::vector<uint16_t> scale, minimum;  // [K/group] f16 bits; flat
  std::vector<int8_t> s, m;              // [K/group]; two_level
  std::vector<uint16_t> d, dm;           // [K/256] f16 bits; two_level

  Row(const Format& f, int cols)
      : q((cols + kUnit - 1) / kUnit * kUnit),
        scale(cols / f.group + 1),
        minimum(scale.size()),
        s(scale.size()),
        m(scale.size()),
        d(cols / kSuper + 1),
        dm(d.size()) {}
};

uint16_t negate(uint16_t half) { return half ^ 0x8000; }

enum Ggml {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30
};

struct GgufType {
  int type, block, bytes;
  Format format;
};
constexpr GgufType kTypes[] = {
    {F32, 1, 4, {0, 0, false, false, Float::f32}},      {F16, 1, 2, {0, 0, false, false, Float::f16}},
    {BF16, 1, 2, {0, 0, false, false, Float::bf16}},    {Q4_0, 32, 18, {4, 32, false, false, Float::none}},
    {Q4_1, 32, 20, {4, 32, true, false, Float::none}},  {Q5_0, 32, 22, {5, 32, false, false, Float::none}},
    {Q5_1, 32, 24, {5, 32, true, false, Float::none}},  {Q8_0, 32, 34, {8, 32, false, false, Float::none}},
    {Q2_K, 256, 84, {2, 16, true, true, Float::none}},  {Q3_K, 256, 110, {3, 16, false, true, Float::none}},
    {Q4_K, 256, 144, {4, 32, true, true, Float::none}}, {Q5_K, 256, 176, {5, 32, true, true, Float::none}},
    {Q6_K, 256, 210, {6, 16, false, true, Float::none}}};

const GgufType* find(int type) {
  for (const GgufType& t : kTypes)
    if (t.type == type) return &t;
  return nullptr;
}

// Blocks of 32: f16 scale [, f16 minimum] [, 32 high bits], codes.
void read_flat(const GgufType& t, const uint8_t* p, int cols, Row& row) {
  for (int g = 0; g < cols / 32; g++, p += t.bytes) {
    const uint8_t* at = p;
    uint8_t* q = &row.q[g * 32];
    row.scale[g] = read16(at);
    at += 2;
    if (t.format.minimum) row.minimum[g] = read16(at), at += 2;
    if (t.type == Q8_0) {
      for (int i = 0; i < 32; i++) q[i] = uint8_t(int8_t(at[i]) + 128);
      continue;
    }
    uint32_t high = 0;
    if (t.format.bits == 5) std::memcpy(&high, at, 4), at += 4;
    for (int i = 0; i < 16; i++) {
      q[i] = uint8_t((at[i] & 15) | (high >> i & 1) << 4);
      q[i + 16] = uint8_t(at[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
  }
}

// The twelve bytes that hold eight 6-bit scales and eight 6-bit minimums of Q4_K and Q5_K.
void read_scales_k(const uint8_t* p, int8_t* s, int8_t* m) {
  for (int j = 0; j < 4; j++) {
    s[j] = int8_t(p[j] & 63);
    m[j] = int8_t(p[j + 4] & 63);
    s[j + 4] = int8_t((p[j + 8] & 15) | p[j] >> 6 << 4);
    m[j + 4] = int8_t(p[j + 8] >> 4 | p[j + 4] >> 6 << 4);
  }
}

void read_super(int type, const uint8_t* p, int b, Row& row) {
  uint8_t* q = &row.q[b * kSuper];
  switch (type) {
    case Q4_K:
    case Q5_K: {
      row.d[b] = read16(p);
      row.dm[b] = negate(read16(p + 2));
      read_scales_k(p + 4, &row.s[b * 8], &row.m[b * 8]);
      const uint8_t *high = p + 16, *low = type == Q5_K ? p + 48 : p + 16;
      for (int j = 0; j < 4; j++, low += 32)
        for (int i = 0; i < 32; i++) {
          q[64 * j + i] = low[i] & 15;
          q[64 * j + 32 + i] = low[i] >> 4;
          if (type == Q5_K) {
            q[64 * j + i] |= uint8_t((high[i] >> (2 * j) & 1) << 4);
            q[64 * j + 32 + i] |= uint8_t((high[i] >> (2 * j + 1) & 1) << 4);
          }
        }
      return;
    }
    case Q6_K: {
      const uint8_t *low = p, *high = p + 128;
      for (int half = 0; half < 2; half++, low += 64, high += 32, q += 128)
        for (int i = 0; i < 32; i++) {
          q[i] = uint8_t((low[i] & 15) | (high[i] & 3) << 4);
          q[i + 32] = uint8_t((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
          q[i + 64] = uint8_t(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
          q[i + 96] = uint8_t(low[i + 32] >> 4 | (high[i] >> 6) << 4);
        }
      std::memcpy(&row.s[b * 16], p + 192, 16);
      row.d[b] = read16(p + 208);
      return;
    }
    case Q3_K: {
      const uint8_t *mask = p, *low = p + 32, *packed = p + 96;
      for (int half = 0; half < 2; half++, low += 32)
        for (int j = 0; j < 4; j++)
          for (int i = 0; i < 32; i++)
            q[128 * half + 32 * j + i] = uint8_t((low[i] >> (2 * j) & 3) | (mask[i] >> (4 * half + j) & 1) << 2);
      for (int j = 0; j < 16; j++) {
        int lo = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4, hi = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
        row.s[b * 16 + j] = int8_t((lo | hi << 4) - 32);
      }
      row.d[b] = read16(p + 108);
      return;
    }
    case Q2_K: {
      const uint8_t* low = p + 16;
      for (int half = 0; half < 2; half++, low += 32)
        for (int j = 0; j < 4; j++)
          for (int i = 0; i < 32; i++) q[128 * half + 32 * j + i] = low[i] >> (2 * j) & 3;
      for (int j = 0; j < 16; j++) {
        row.s[b * 16 + j] = int8_t(p[j] & 15);
        row.m[b * 16 + j] = int8_t(p[j] >> 4);
      }
      row.d[b] = read16(p + 80);
      row.dm[b] = negate(read16(p + 82));
      return;
    }
  }
}

// Codes by quad into the bit planes of a unit. Masked eight bytes at a time: no bit leaves its byte.
void put_unit(int bits, const uint64_t (&quads)[8][8], uint8_t* unit) {
  int shift = 0;
  for (int width : {8, 4, 2, 1}) {
    if (bits < width) continue;
    uint64_t mask = 0x0101010101010101u * ((1u << width) - 1);
    for (int v = 0; v < width; v++, unit += 64) {
      uint64_t plane[8] = {};
      for (int slot = 0; slot < 8 / width; slot++)
        for (int i = 0; i < 8; i++) plane[i] |= (quads[v + width * slot][i] >> shift & mask) << (width * slot);
      std::memcpy(unit, plane, 64);
    }
    shift += width, bits -= width;
  }
}

// The 32 codes of one lane of a unit.
void get_codes(int bits, const uint8_t* unit, int lane, uint8_t* q) {
  uint32_t quads[8] = {};
  int shift = 0;
  for (int width : {8, 4, 2, 1}) {
    if (bits < width) continue;
    uint32_t mask = 0x01010101 * ((1u << width) - 1);
    for (int j = 0; j < 8; j++) {
      uint32_t word;
      std::memcpy(&word, unit + 64 * (j % width) + 4 * lane, 4);
      quads[j] |= (word >> (j / width * width) & mask) << shift;
    }
    unit += 64 * width;
    shift += width, bits -= width;
  }
  std::memcpy(q, quads, kUnit);
}

// The scales of one row into lane n of a zeroed tile.
void put_scales(const Format& f, const Layout& at, int cols, const Row& row, int n, uint8_t* tile) {
  int groups = (cols + f.group - 1) / f.group;
  for (int g = 0; g < groups; g++) {
    uint8_t* header = tile + at.block(g * f.group / kUnit);
    int i = g % at.block_groups;
    if (f.two_level) {
      header[at.scales + i * kLanes + n] = uint8_t(row.s[g]);
      if (f.minimum) header[at.mins + i * kLanes + n] = uint8_t(row.m[g]);
    } else {
      put16(header + at.scales + i * kLanes * 2, n, row.scale[g]);
      if (f.minimum) put16(header + at.mins + i * kLanes * 2, n, row.minimum[g]);
    }
  }
  if (f.two_level)
    for (int b = 0; b < cols / kSuper; b++) {
      uint8_t* header = tile + at.block(b * (kSuper / kUnit));
      put16(header, n, row.d[b]);
      if (f.minimum) put16(header + at.super_mins, n, row.dm[b]);
    }
}

// Sixteen rows, of which the first `count` are there, into a tile.
void put_tile(const Format& f, const Layout& at, int cols, const std::vector<Row>& rows, int count, uint8_t* tile) {
  std::memset(tile, 0, at.tile_bytes);
  for (int n = 0; n < count; n++) put_scales(f, at, cols, rows[n], n, tile);
  uint64_t quads[8][8] = {};
  for (int u = 0; u < at.num_units; u++) {
    for (int n = 0; n < count; n++)
      for (int j = 0; j < 8; j++) std::memcpy(reinterpret_cast<uint8_t*>(quads[j]) + 4 * n, &rows[n].q[u * kUnit + 4 * j], 4);
    put_unit(f.bits, quads, tile + at.unit(u));
  }
}

// `count` rows of elements, row_bytes apart, into a float tile.
template <class T>
void put_elements(const uint8_t* rows, size_t row_bytes, int count, int cols, uint8_t* tile) {
  for (int n = 0; n < count; n++, rows += row_bytes)
    for (int k = 0; k < cols; k++) std::memcpy(tile + (size_t(k) * kLanes + n) * sizeof(T), rows + k * sizeof(T), sizeof(T));
}
void put_floats(const Format& f, const Layout& at, const uint8_t* rows, size_t row_bytes, int count, int cols, uint8_t* tile) {
  std::memset(tile, 0, at.tile_bytes);
  if (f.element_size() == 4)
    put_elements<uint32_t>(rows, row_bytes, count, cols, tile);
  else
    put_elements<uint16_t>(rows, row_bytes, count, cols, tile);
}

uint16_t to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t(u >> 16 | 64);
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// To the nearest half, ties to even; magnitudes above the largest half become infinite.
uint16_t to_f16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (a >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (a < 0x38800000) {  // subnormal: units of 2^-24
    float scaled;
    std::memcpy(&scaled, &a, 4);
    return uint16_t(sign | uint32_t(std::nearbyint(scaled * 16777216.0f)));
  }
  a += 0xfff + (a >> 13 & 1);
  return uint16_t(sign | (a - 0x38000000) >> 13);
}

float from_f16(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, a = h & 0x7fff, u;
  if (a >= 0x7c00) {
    u = a << 13 | 0x7f800000;
  } else if (a >= 0x400) {
    u = (a << 13) + 0x38000000;
  } else {
    float v = float(a) * 0x1p-24f;
    std::memcpy(&u, &v, 4);
  }
  u |= sign;
  float v;
  std::memcpy(&v, &u, 4);
  return v;
}

// Codes of a group under scale s and minimum m, and their squared error.
float quantise(const float* w, int n, float s, float m, int offset, int top, float* codes) {
  constexpr float kRound = 12582912.0f;  // adding and subtracting 1.5 * 2^23 rounds to the nearest integer
  float inverse = 1.0f / s, high = float(top), zero = float(offset), errors[8] = {}, squares[64];
  for (int i = 0; i < n; i++) {
    float code = (w[i] - m) * inverse + zero;
    code = code > 0.0f ? code : 0.0f;
    codes[i] = ((code < high ? code : high) + kRound) - kRound;
    float e = s * (codes[i] - zero) + m - w[i];
    squares[i] = e * e;
  }
  for (int i = n; i % 8; i++) squares[i] = 0.0f;
  for (int i = 0; i < n; i += 8)
    for (int j = 0; j < 8; j++) errors[j] += squares[i + j];
  return ((errors[0] + errors[1]) + (errors[2] + errors[3])) + ((errors[4] + errors[5]) + (errors[6] + errors[7]));
}

// Codes, scale and minimum of a group by least squared error, over ranges from a little wider than the group's to a good
// deal narrower: with few codes, clipping one extreme often pays for itself.
void quantise_group(const Format& f, const float* w, int n, uint8_t* q, uint16_t* scale, uint16_t* minimum) {
  int top = (1 << f.bits) - 1, offset = f.offset();
  float lo = 0, hi = 0, best = INFINITY;
  for (int i = 0; i < n; i++) {
    lo = std::min(lo, w[i]);
    hi = std::max(hi, w[i]);
  }
  *scale = *minimum = 0;
  float codes[64], trial[64];
  std::fill(codes, codes + n, float(offset));
  for (int step = -2, last = f.bits >= 6 ? 0 : 10; step <= last; step++) {
    float shrink = 0.025f * float(step), base = (hi - lo) * (1.0f - shrink) / float(top);
    uint16_t m16 = 0;
    if (f.minimum)
      m16 = to_f16(lo * (1.0f - shrink));
    else  // the code furthest from zero stands for the larger extreme, whatever its sign
      base = (hi > -lo ? hi : lo) / float(-offset) * (1.0f - shrink);
    uint16_t s16 = to_f16(base);
    float s = from_f16(s16);
    if (s == 0 || !std::isfinite(s)) continue;
    float error = quantise(w, n, s, from_f16(m16), offset, top, trial);
    if (error < best) {
      best = error;
      *scale = s16;
      *minimum = m16;
      std::copy(trial, trial + n, codes);
    }
  }
  for (int i = 0; i < n; i++) q[i] = uint8_t(int(codes[i]));
}

}  // namespace

bool gguf_format(int type, Format* format) {
  const GgufType* t = find(type);
  if (t) *format = t->format;
  return t != nullptr;
}

size_t gguf_row_bytes(int type, int64_t cols) {
  const GgufType* t = find(type);
  return t && cols > 0 && cols % t->block == 0 ? size_t(cols / t->block) * t->bytes : 0;
}

void pack_gguf(int type, const uint8_t* src, int rows, int cols, uint8_t* dst, int num_threads) {
  const GgufType& t = *find(type);
  const Format& f = t.format;
  Layout at(f, cols);
  size_t row_bytes = gguf_row_bytes(type, cols);
  by_tiles(rows, num_threads, [&](int first, int last) {
    std::vector<Row> lanes;
    if (f.type == Float::none) lanes.assign(kLanes, Row(f, cols));
    for (int n = first; n < last; n += kLanes) {
      uint8_t* tile = dst + n / kLanes * at.tile_bytes;
      int count = std::min(kLanes, last - n);
      const uint8_t* p = src + n * row_bytes;
      if (f.type != Float::none) {
        put_floats(f, at, p, row_bytes, count, cols, tile);
        continue;
      }
      for (int i = 0; i < count; i++, p += row_bytes)
        if (f.two_level)
          for (int b = 0; b < cols / kSuper; b++) read_super(type, p + size_t(b) * t.bytes, b, lanes[i]);
        else
          read_flat(t, p, cols, lanes[i]);
      put_tile(f, at, cols, lanes, count, tile);
    }
  });
}

void pack_float(const Format& f, const float* w, int rows, int cols, uint8_t* dst, int num_threads) {
  if (f.two_level) throw std::invalid_argument("floats cannot be packed into a two-level format");
  Layout at(f, cols);
  by_tiles(rows, num_threads, [&](int first, int last) {
    std::vector<Row> lanes;
    if (f.type == Float::none) lanes.assign(kLanes, Row(f, cols));
    std::vector<uint16_t> halves(f.type == Float::none || f.type == Float::f32 ? 0 : size_t(kLanes) * cols);
    for (int n = first; n < last; n += kLanes) {
      uint8_t* tile = dst + n / kLanes * at.tile_bytes;
      int count = std::min(kLanes, last - n);
      const float* x = w + size_t(n) * cols;
      if (f.type == Float::f32) {
        put_floats(f, at, reinterpret_cast<const uint8_t*>(x), size_t(cols) * 4, count, cols, tile);
      } else if (f.type != Float::none) {
        std::transform(x, x + size_t(count) * cols, halves.begin(), f.type == Float::bf16 ? to_bf16 : to_f16);
        put_floats(f, at, reinterpret_cast<const uint8_t*>(halves.data()), size_t(cols) * 2, count, cols, tile);
      } else {
        for (int i = 0; i < count; i++, x += cols)
          for (int k = 0; k < cols; k += f.group)
            quantise_group(f, x + k, std::min<int>(f.group, cols - k), &lanes[i].q[k], &lanes[i].scale[k / f.group],
                           &lanes[i].minimum[k / f.group]);
        put_tile(f, at, cols, lanes, count, tile);
      }
    }
  });
}

void unpack_row(const Matrix& w, int n, float* out) {
  const Format& f = w.format;
  Layout at(f, w.cols);
  const uint8_t* tile = w.tile(at, n / kLanes);
  int lane = n % kLanes;
  auto half = [&](const uint8_t* p) { return from_f16(read16(p + 2 * lane)); };
  if (f.sparse && f.type == Float::bf16) {
    const uint8_t* p = tile;
    for (int k = 0; k < w.cols; k++) {
      if (k % kUnit == 0) tile = p, p += 2 * kUnit;
      uint32_t mask = read16(tile + 2 * (k % kUnit)), u = 0;
      if (mask >> lane & 1) u = uint32_t(read16(p + 2 * __builtin_popcount(mask & ((1u << lane) - 1)))) << 16;
      std::memcpy(&out[k], &u, 4);
      p += 2 * __builtin_popcount(mask);
    }
    return;
  }
  if (f.type != Float::none) {
    for (int k = 0; k < w.cols; k++) {
      const uint8_t* p = tile + (size_t(k) * kLanes + lane) * f.element_size();
      if (f.type == Float::f16) {
        out[k] = from_f16(read16(p));
      } else {
        uint32_t u = f.type == Float::bf16 ? uint32_t(read16(p)) << 16 : 0;
        if (f.type == Float::f32) std::memcpy(&u, p, 4);
        std::memcpy(&out[k], &u, 4);
      }
    }
    return;
  }
  uint8_t q[kUnit];
  const uint8_t *header = tile, *next = tile;  // of a sparse tile: the block at hand, and the unit to come
  for (int g = 0; g * f.group < w.cols; g++) {
    if (!f.sparse) header = tile + at.block(g * f.group / kUnit);
    if (f.sparse && g % at.block_groups == 0) header = next, next += at.header;
    int i = g % at.block_groups;
    float s, m = 0;
    if (f.two_level) {
      s = half(header) * float(int8_t(header[at.scales + i * kLanes + lane]));
      if (f.minimum) m = half(header + at.super_mins) * float(int8_t(header[at.mins + i * kLanes + lane]));
    } else {
      s = half(header + at.scales + i * kLanes * 2);
      if (f.minimum) m = half(header + at.mins + i * kLanes * 2);
    }
    for (int k = g * f.group, last = std::min(k + f.group, w.cols); k < last; k++) {
      if (k % kUnit == 0 && f.sparse) next = get_kept(f.bits, next, w.in_pairs(n / kLanes), lane, q);
      if (k % kUnit == 0 && !f.sparse) get_codes(f.bits, tile + at.unit(k / kUnit), lane, q);
      out[k] = s * float(q[k % kUnit] - f.offset());
      if (f.minimum) out[k] += m;  // adding zero would lose the sign of a zero
    }
  }
}

}  // namespace narrows
