// 16 lanes on NEON with the dot-product extension, as four times four. Included inside an anonymous namespace.
struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct B {
  uint8x16_t v[4];
};

template <class Body>
inline F each_f(Body body) {
  return {{body(0), body(1), body(2), body(3)}};
}
template <class Body>
inline I each_i(Body body) {
  return {{body(0), body(1), body(2), body(3)}};
}

inline F set1(float x) {
  return each_f([&](int) { return vdupq_n_f32(x); });
}
inline F zero_f() { return set1(0.0f); }
inline F load(const float* p) {
  return each_f([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F a) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
inline F load_part(const float* p, int n) {
  if (n == 16) return load(p);
  float t[16] = {};
  for (int i = 0; i < n; i++) t[i] = p[i];
  return load(t);
}
inline void store_part(float* p, F a, int n) {
  if (n == 16) return store(p, a);
  float t[16];
  store(t, a);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
inline F load_bf16(const uint16_t* p) {
  return each_f([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline F load_f16(const uint16_t* p) {
  return each_f([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline F operator+(F a, F b) {
  return each_f([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F operator-(F a, F b) {
  return each_f([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F operator*(F a, F b) {
  return each_f([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F operator/(F a, F b) {
  return each_f([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F fma(F a, F b, F c) {
  return each_f([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F max(F a, F b) {
  return each_f([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F min(F a, F b) {
  return each_f([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F abs(F a) {
  return each_f([&](int i) { return vabsq_f32(a.v[i]); });
}
inline F keep(F a, int lo, int hi, float other) {
  const int32_t first[4] = {0, 1, 2, 3};
  int32x4_t lane = vld1q_s32(first);
  return each_f([&](int i) {
    int32x4_t at = vaddq_s32(lane, vdupq_n_s32(4 * i));
    uint32x4_t in = vandq_u32(vcgeq_s32(at, vdupq_n_s32(lo)), vcltq_s32(at, vdupq_n_s32(hi)));
    return vbslq_f32(in, a.v[i], vdupq_n_f32(other));
  });
}
inline I round_i(F a) {
  return each_i([&](int i) { return vcvtnq_s32_f32(a.v[i]); });
}

inline I set1(int32_t x) {
  return each_i([&](int) { return vdupq_n_s32(x); });
}
inline I zero_i() { return set1(int32_t(0)); }
inline I load_i(const int32_t* p) {
  return each_i([&](int i) { return vld1q_s32(p + 4 * i); });
}
inline void store(int32_t* p, I a) {
  for (int i = 0; i < 4; i++) vst1q_s32(p + 4 * i, a.v[i]);
}
inline I operator+(I a, I b) {
  return each_i([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline I operator-(I a, I b) {
  return each_i([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
inline F to_f(I a) {
  return each_f([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
inline I load_i8(const int8_t* p) {
  int8x16_t x = vld1q_s8(p);
  int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
  return {{vmovl_s16(vget_low_s16(lo)), vmovl_s16(vget_high_s16(lo)), vmovl_s16(vget_low_s16(hi)), vmovl_s16(vget_high_s16(hi))}};
}
inline void store_i8(int8_t* p, I a) {
  int16x8_t lo = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1])), hi = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vqmovn_s16(lo), vqmovn_s16(hi)));
}
inline F exp2_i(I n) {
  return each_f([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v[i], vdupq_n_s32(127)), 23)); });
}

inline B load_b(const uint8_t* p) { return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}}; }
inline void store(uint8_t* p, B a) {
  for (int i = 0; i < 4; i++) vst1q_u8(p + 16 * i, a.v[i]);
}
template <int N>
inline B shift(B a) {
  for (int i = 0; i < 4; i++) {
    if constexpr (N > 0) a.v[i] = vshlq_n_u8(a.v[i], N);
    if constexpr (N < 0) a.v[i] = vshrq_n_u8(a.v[i], -N);
  }
  return a;
}
inline B mask(B a, uint8_t m) {
  for (int i = 0; i < 4; i++) a.v[i] = vandq_u8(a.v[i], vdupq_n_u8(m));
  return a;
}
inline B or_mask(B a, B b, uint8_t m) {
  for (int i = 0; i < 4; i++) a.v[i] = vorrq_u8(a.v[i], vandq_u8(b.v[i], vdupq_n_u8(m)));
  return a;
}
inline B flip(B a, uint8_t m) {
  for (int i = 0; i < 4; i++) a.v[i] = veorq_u8(a.v[i], vdupq_n_u8(m));
  return a;
}
#include "isa/spread.h"
inline B expand(const uint8_t* p, uint64_t bits) {
  B r;
  for (int i = 0; i < 4; i++, bits >>= 16) {
    unsigned first = bits & 0xff;
    uint8x16_t at = vcombine_u8(vld1_u8(kSpread.bytes[first]), vld1_u8(kSpread.bytes[bits >> 8 & 0xff]));
    r.v[i] = vqtbl1q_u8(vld1q_u8(p), vaddq_u8(at, vld1q_u8(kSpread.after[__builtin_popcount(first)])));
    p += __builtin_popcount(unsigned(bits & 0xffff));
  }
  return r;
}
inline F expand_bf16(const uint8_t* p, uint16_t bits) {
  uint16_t t[16];
  vst1q_u8((uint8_t*)t, vqtbl1q_u8(vld1q_u8(p), vld1q_u8(kSpread.words[bits & 0xff])));
  p += 2 * __builtin_popcount(bits & 0xffu);
  vst1q_u8((uint8_t*)(t + 8), vqtbl1q_u8(vld1q_u8(p), vld1q_u8(kSpread.words[bits >> 8])));
  return load_bf16(t);
}
template <int BITS>
inline I dot(I acc, B w, const int8_t* x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, 4);
  int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  for (int i = 0; i < 4; i++) {
    if constexpr (BITS < 8) {
      acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), v);
    } else {  // codes above 127 do not fit a signed byte: w = (w - 128) + 128, and 128 = 64 + 64
      int8x16_t low = vreinterpretq_s8_u8(veorq_u8(w.v[i], vdupq_n_u8(128))), half = vdupq_n_s8(64);
      acc.v[i] = vdotq_s32(vdotq_s32(vdotq_s32(acc.v[i], low, v), half, v), half, v);
    }
  }
  return acc;
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }

// Sums in the order (i, i+8), (i, i+4), (i, i+2), (i, i+1) on every level.
inline float reduce_add(F a) {
  float32x4_t b = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
  return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
inline float reduce_max(F a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3]))); }

inline int32_t reduce_add(I a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3]))); }
inline I shift_left(I a, int n) {
  int32x4_t count = vdupq_n_s32(n);
  return each_i([&](int i) { return vshlq_s32(a.v[i], count); });
}
