// Packing: checkpoint bytes or floats -> the layout of format.h. A row is decoded to codes and scales, sixteen rows make a tile.
#include "narrows/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace narrows {
namespace {

// One row as codes and 16-bit or two-level scales, the way every integer format sees it.
struct Row {
  std::vector<uint8_t> q;                // [K] unsigned codes
  std::vector<uint16_t> scale, minimum;  // [K/group] f16 bits; flat
  std::vector<int8_t> s, m;              // [K/group]; two_level
  std::vector<uint16_t> d, dm;           // [K/256] f16 bits; two_level

  Row(const Format& f, int cols)
      : q(cols),
        scale(cols / f.group + 1),
        minimum(scale.size()),
        s(scale.size()),
        m(scale.size()),
        d(cols / kSuper + 1),
        dm(d.size()) {}
};

uint16_t read16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
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

// Bits of a code in a unit: where quad j, byte b keeps bits [first, first + width) of q.
void put_code(uint8_t* unit, int bits, int j, int byte, uint8_t q) {
  if (bits == 8) {
    unit[64 * j + byte] = q;
    return;
  }
  if (bits >= 4) {
    unit[64 * (j % 4) + byte] |= uint8_t((q & 15) << (j / 4 * 4));
    unit += 256, q >>= 4, bits -= 4;
  }
  if (bits >= 2) {
    unit[64 * (j % 2) + byte] |= uint8_t((q & 3) << (j / 2 * 2));
    unit += 128, q >>= 2, bits -= 2;
  }
  if (bits == 1) unit[byte] |= uint8_t((q & 1) << j);
}

uint8_t get_code(const uint8_t* unit, int bits, int j, int byte) {
  if (bits == 8) return unit[64 * j + byte];
  int q = 0, shift = 0;
  if (bits >= 4) {
    q = unit[64 * (j % 4) + byte] >> (j / 4 * 4) & 15;
    unit += 256, shift = 4, bits -= 4;
  }
  if (bits >= 2) {
    q |= (unit[64 * (j % 2) + byte] >> (j / 2 * 2) & 3) << shift;
    unit += 128, shift += 2, bits -= 2;
  }
  if (bits == 1) q |= (unit[byte] >> j & 1) << shift;
  return uint8_t(q);
}

void put16(uint8_t* p, int lane, uint16_t v) { std::memcpy(p + 2 * lane, &v, 2); }

// One row into lane n of a zeroed tile.
void put_row(const Format& f, const Layout& at, int cols, const Row& row, int n, uint8_t* tile) {
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
  for (int k = 0; k < cols; k++) put_code(tile + at.unit(k / kUnit), f.bits, k % kUnit / 4, 4 * n + k % 4, row.q[k]);
}

// Runs body(first row, last row) over ranges of whole tiles.
template <class Body>
void by_tiles(int rows, int num_threads, Body body) {
  int tiles = num_tiles(rows), n = std::max(1, std::min(num_threads, tiles));
  std::vector<std::thread> threads;
  for (int i = 0; i < n; i++) {
    int first = int(int64_t(tiles) * i / n) * kLanes, last = std::min(rows, int(int64_t(tiles) * (i + 1) / n) * kLanes);
    if (i + 1 < n)
      threads.emplace_back(body, first, last);
    else
      body(first, last);
  }
  for (auto& t : threads) t.join();
}

// Elements of a row, `size` bytes each, into lane n of a float tile.
void put_floats(const uint8_t* row, int cols, int size, int n, uint8_t* tile) {
  for (int k = 0; k < cols; k++) std::memcpy(tile + (size_t(k) * kLanes + n) * size, row + size_t(k) * size, size);
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
  int exp = h >> 10 & 31, frac = h & 0x3ff;
  float v = exp == 31 ? (frac ? NAN : INFINITY) : exp ? std::ldexp(float(frac + 1024), exp - 25) : std::ldexp(float(frac), -24);
  return h & 0x8000 ? -v : v;
}

// Codes and scale of one group by least squared error over a few scales around the one that just holds the extremes.
void quantise_group(const Format& f, const float* w, int n, uint8_t* q, uint16_t* scale, uint16_t* minimum) {
  int top = (1 << f.bits) - 1, offset = f.offset();
  float lo = 0, hi = 0, extreme = 0;
  for (int i = 0; i < n; i++) {
    lo = std::min(lo, w[i]);
    hi = std::max(hi, w[i]);
    if (std::fabs(w[i]) > std::fabs(extreme)) extreme = w[i];
  }
  float best = INFINITY, base = f.minimum ? (hi - lo) / float(top) : extreme / float(-offset);
  uint16_t m16 = f.minimum ? to_f16(lo) : 0;
  float m = from_f16(m16);
  std::fill(q, q + n, uint8_t(offset));
  *scale = 0;
  *minimum = m16;
  if (base == 0 || !std::isfinite(base)) return;
  std::vector<uint8_t> trial(n);
  for (int step = -4; step <= 4; step++) {
    uint16_t s16 = to_f16(base * (1.0f + 0.02f * float(step)));
    float s = from_f16(s16), error = 0;
    if (s == 0 || !std::isfinite(s)) continue;
    for (int i = 0; i < n; i++) {
      int code = std::clamp(int(std::nearbyint((w[i] - m) / s)) + offset, 0, top);
      float e = s * float(code - offset) + m - w[i];
      trial[i] = uint8_t(code);
      error += e * e;
    }
    if (error < best) {
      best = error;
      *scale = s16;
      std::copy(trial.begin(), trial.end(), q);
    }
  }
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
    Row row(f.type == Float::none ? f : Format{8, 32, false, false, Float::none}, f.type == Float::none ? cols : 0);
    for (int n = first; n < last; n++) {
      uint8_t* tile = dst + n / kLanes * at.tile_bytes;
      const uint8_t* p = src + n * row_bytes;
      if (n % kLanes == 0) std::memset(tile, 0, at.tile_bytes);
      if (f.type != Float::none) {
        put_floats(p, cols, f.element_size(), n % kLanes, tile);
        continue;
      }
      if (f.two_level)
        for (int b = 0; b < cols / kSuper; b++) read_super(type, p + size_t(b) * t.bytes, b, row);
      else
        read_flat(t, p, cols, row);
      put_row(f, at, cols, row, n % kLanes, tile);
    }
  });
}

void pack_float(const Format& f, const float* w, int rows, int cols, uint8_t* dst, int num_threads) {
  if (f.two_level) throw std::invalid_argument("floats cannot be packed into a two-level format");
  Layout at(f, cols);
  by_tiles(rows, num_threads, [&](int first, int last) {
    Row row(f.type == Float::none ? f : Format{8, 32, false, false, Float::none}, cols);
    std::vector<uint16_t> halves(cols);
    for (int n = first; n < last; n++) {
      uint8_t* tile = dst + n / kLanes * at.tile_bytes;
      const float* x = w + size_t(n) * cols;
      if (n % kLanes == 0) std::memset(tile, 0, at.tile_bytes);
      if (f.type == Float::f32) {
        put_floats(reinterpret_cast<const uint8_t*>(x), cols, 4, n % kLanes, tile);
      } else if (f.type != Float::none) {
        std::transform(x, x + cols, halves.begin(), f.type == Float::f16 ? to_f16 : to_bf16);
        put_floats(reinterpret_cast<const uint8_t*>(halves.data()), cols, 2, n % kLanes, tile);
      } else {
        for (int g = 0; g * f.group < cols; g++)
          quantise_group(f, x + g * f.group, std::min<int>(f.group, cols - g * f.group), &row.q[g * f.group], &row.scale[g],
                         &row.minimum[g]);
        put_row(f, at, cols, row, n % kLanes, tile);
      }
    }
  });
}

void unpack_row(const Matrix& w, int n, float* out) {
  const Format& f = w.format;
  Layout at(f, w.cols);
  const uint8_t* tile = w.data + n / kLanes * at.tile_bytes;
  int lane = n % kLanes;
  auto half = [&](const uint8_t* p) { return from_f16(read16(p + 2 * lane)); };
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
  for (int g = 0; g * f.group < w.cols; g++) {
    const uint8_t* header = tile + at.block(g * f.group / kUnit);
    int i = g % at.block_groups;
    float s, m = 0;
    if (f.two_level) {
      s = half(header) * float(int8_t(header[at.scales + i * kLanes + lane]));
      if (f.minimum) m = half(header + at.super_mins) * float(int8_t(header[at.mins + i * kLanes + lane]));
    } else {
      s = half(header + at.scales + i * kLanes * 2);
      if (f.minimum) m = half(header + at.mins + i * kLanes * 2);
    }
    for (int k = g * f.group; k < std::min((g + 1) * f.group, w.cols); k++) {
      int q = get_code(tile + at.unit(k / kUnit), f.bits, k % kUnit / 4, 4 * lane + k % 4);
      out[k] = s * float(q - f.offset()) + m;
    }
  }
}

}  // namespace narrows
