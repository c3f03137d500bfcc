// 16 lanes as plain arrays: the portable level, and the meaning of the others. Included inside an anonymous namespace.
struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct B {
  uint8_t v[64];
};

template <class Body>
inline F each_f(Body body) {
  F r;
  for (int i = 0; i < 16; i++) r.v[i] = body(i);
  return r;
}
template <class Body>
inline I each_i(Body body) {
  I r;
  for (int i = 0; i < 16; i++) r.v[i] = body(i);
  return r;
}
template <class To, class From>
inline To as(From x) {
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

inline F set1(float x) {
  return each_f([&](int) { return x; });
}
inline F zero_f() { return set1(0.0f); }
inline F load(const float* p) {
  return each_f([&](int i) { return p[i]; });
}
inline void store(float* p, F a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline F load_part(const float* p, int n) {
  return each_f([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_part(float* p, F a, int n) { __builtin_memcpy(p, a.v, size_t(n) * 4); }
inline F load_bf16(const uint16_t* p) {
  return each_f([&](int i) { return as<float>(uint32_t(p[i]) << 16); });
}
inline float widen_f16(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 0x3ff;
  if (exp == 31) return as<float>(sign | 0x7f800000 | frac << 13);
  if (exp) return as<float>(sign | (exp + 112) << 23 | frac << 13);
  float tiny = float(frac) * 5.9604644775390625e-08f;  // 2^-24
  return sign ? -tiny : tiny;
}
inline F load_f16(const uint16_t* p) {
  return each_f([&](int i) { return widen_f16(p[i]); });
}
inline F operator+(F a, F b) {
  return each_f([&](int i) { return a.v[i] + b.v[i]; });
}
inline F operator-(F a, F b) {
  return each_f([&](int i) { return a.v[i] - b.v[i]; });
}
inline F operator*(F a, F b) {
  return each_f([&](int i) { return a.v[i] * b.v[i]; });
}
inline F operator/(F a, F b) {
  return each_f([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(F a, F b, F c) {
  return each_f([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline F max(F a, F b) {
  return each_f([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(F a, F b) {
  return each_f([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F abs(F a) {
  return each_f([&](int i) { return as<float>(as<uint32_t>(a.v[i]) & 0x7fffffff); });
}
inline F keep(F a, int lo, int hi, float other) {
  return each_f([&](int i) { return lo <= i && i < hi ? a.v[i] : other; });
}
inline I round_i(F a) {
  return each_i([&](int i) { return int32_t(__builtin_rintf(a.v[i])); });
}

inline I set1(int32_t x) {
  return each_i([&](int) { return x; });
}
inline I zero_i() { return set1(int32_t(0)); }
inline I load_i(const int32_t* p) {
  return each_i([&](int i) { return p[i]; });
}
inline void store(int32_t* p, I a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline I operator+(I a, I b) {
  return each_i([&](int i) { return a.v[i] + b.v[i]; });
}
inline I operator-(I a, I b) {
  return each_i([&](int i) { return a.v[i] - b.v[i]; });
}
inline F to_f(I a) {
  return each_f([&](int i) { return float(a.v[i]); });
}
inline I load_i8(const int8_t* p) {
  return each_i([&](int i) { return int32_t(p[i]); });
}
inline void store_i8(int8_t* p, I a) {
  for (int i = 0; i < 16; i++) p[i] = int8_t(a.v[i]);
}
inline F exp2_i(I n) {
  return each_f([&](int i) { return as<float>(uint32_t(n.v[i] + 127) << 23); });
}

inline B load_b(const uint8_t* p) {
  B r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
inline void store(uint8_t* p, B a) { __builtin_memcpy(p, a.v, 64); }
template <int N>
inline B shift(B a) {
  for (int i = 0; i < 64; i++) a.v[i] = uint8_t(N >= 0 ? a.v[i] << (N >= 0 ? N : 0) : a.v[i] >> (N < 0 ? -N : 0));
  return a;
}
inline B mask(B a, uint8_t m) {
  for (int i = 0; i < 64; i++) a.v[i] &= m;
  return a;
}
inline B or_mask(B a, B b, uint8_t m) {
  for (int i = 0; i < 64; i++) a.v[i] |= uint8_t(b.v[i] & m);
  return a;
}
inline B flip(B a, uint8_t m) {
  for (int i = 0; i < 64; i++) a.v[i] ^= m;
  return a;
}
// Bytes from p on, in order, at the bits that are set, zero at the others. May read 64 bytes.
inline B expand(const uint8_t* p, uint64_t bits) {
  B r = {};
  for (int i = 0; i < 64; i++)
    if (bits >> i & 1) r.v[i] = *p++;
  return r;
}
inline F expand_bf16(const uint8_t* p, uint16_t bits) {
  return each_f([&](int i) {
    uint16_t h = 0;
    if (bits >> i & 1) {
      __builtin_memcpy(&h, p, 2);
      p += 2;
    }
    return as<float>(uint32_t(h) << 16);
  });
}
template <int BITS>
inline I dot(I acc, B w, const int8_t* x) {
  for (int n = 0; n < 16; n++)
    for (int i = 0; i < 4; i++) acc.v[n] += int32_t(w.v[4 * n + i]) * x[i];
  return acc;
}
inline void prefetch(const void*) {}

// Sums in the order (i, i+8), (i, i+4), (i, i+2), (i, i+1) on every level.
inline float reduce_add(F a) {
  float t[16];
  store(t, a);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; i++) t[i] += t[i + step];
  return t[0];
}
inline float reduce_max(F a) {
  float t[16];
  store(t, a);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; i++) t[i] = t[i] > t[i + step] ? t[i] : t[i + step];
  return t[0];
}

inline int32_t reduce_add(I a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += a.v[i];
  return sum;
}
inline I shift_left(I a, int n) {
  return each_i([&](int i) { return int32_t(uint32_t(a.v[i]) << n); });
}
