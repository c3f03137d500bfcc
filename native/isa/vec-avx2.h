// 16 lanes on AVX2, as pairs of 8. Included inside the anonymous namespace of one translation unit.
struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
struct B {
  __m256i lo, hi;
};
struct P {  // half of a B: two bytes, or one word, for each of 16 rows, or four bytes for each of 8
  __m256i v;
};

inline F zero_f() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline __m256i lanes_below(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
inline F load_part(const float* p, int n) {
  if (n == 16) return load(p);
  return {_mm256_maskload_ps(p, lanes_below(n)), _mm256_maskload_ps(p + 8, lanes_below(n - 8))};
}
inline void store_part(float* p, F a, int n) {
  if (n == 16) return store(p, a);
  _mm256_maskstore_ps(p, lanes_below(n), a.lo);
  _mm256_maskstore_ps(p + 8, lanes_below(n - 8), a.hi);
}
inline __m256 widen_bf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
inline F load_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128((const __m128i*)p)), widen_bf16(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline F load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline F operator+(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F abs(F a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F keep(F a, int lo, int hi, float other) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), next = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  __m256i from = _mm256_set1_epi32(lo - 1), to = _mm256_set1_epi32(hi);
  auto in = [&](__m256i i) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(i, from), _mm256_cmpgt_epi32(to, i)));
  };
  __m256 o = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(o, a.lo, in(lane)), _mm256_blendv_ps(o, a.hi, in(next))};
}
inline I round_i(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

inline I zero_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I load_i(const int32_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))}; }
inline void store(int32_t* p, I a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}
inline I operator+(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I operator-(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline F to_f(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I load_i8(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
inline __m256i narrow(I a, I b) {  // 32 signed bytes
  __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
  return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline F exp2_i(I n) {
  __m256i bias = _mm256_set1_epi32(127);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23))};
}

inline B load_b(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline void store(uint8_t* p, B a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 32), a.hi);
}
template <int N>
inline B shift(B a) {
  if constexpr (N > 0) return {_mm256_slli_epi16(a.lo, N), _mm256_slli_epi16(a.hi, N)};
  if constexpr (N < 0) return {_mm256_srli_epi16(a.lo, -N), _mm256_srli_epi16(a.hi, -N)};
  return a;
}
inline B mask(B a, uint8_t m) {
  __m256i v = _mm256_set1_epi8(char(m));
  return {_mm256_and_si256(a.lo, v), _mm256_and_si256(a.hi, v)};
}
inline B or_mask(B a, B b, uint8_t m) {
  B t = mask(b, m);
  return {_mm256_or_si256(a.lo, t.lo), _mm256_or_si256(a.hi, t.hi)};
}
inline B flip(B a, uint8_t m) {
  __m256i v = _mm256_set1_epi8(char(m));
  return {_mm256_xor_si256(a.lo, v), _mm256_xor_si256(a.hi, v)};
}
template <int N>
inline P shift(P a) {
  if constexpr (N > 0) return {_mm256_slli_epi16(a.v, N)};
  if constexpr (N < 0) return {_mm256_srli_epi16(a.v, -N)};
  return a;
}
inline P mask(P a, uint8_t m) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(char(m)))}; }
inline P or_mask(P a, P b, uint8_t m) { return {_mm256_or_si256(a.v, mask(b, m).v)}; }
#include "isa/spread.h"
inline __m128i expand16(const uint8_t* p, unsigned first, unsigned second) {  // by eight bits and eight bits
  __m128i at = _mm_loadl_epi64((const __m128i*)kSpread.bytes[first]);
  at = _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(at), (const __m64*)kSpread.bytes[second]));
  at = _mm_add_epi8(at, _mm_load_si128((const __m128i*)kSpread.after[__builtin_popcount(first)]));
  return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)p), at);
}
inline B expand(const uint8_t* p, uint64_t bits) {
  __m128i v[4];
  for (int i = 0; i < 4; i++, bits >>= 16) {
    v[i] = expand16(p, bits & 0xff, bits >> 8 & 0xff);
    p += __builtin_popcount(bits & 0xffff);
  }
  return {_mm256_set_m128i(v[1], v[0]), _mm256_set_m128i(v[3], v[2])};
}
inline F expand_bf16(const uint8_t* p, uint16_t bits) {
  unsigned first = bits & 0xff, second = bits >> 8;
  __m128i a = _mm_loadu_si128((const __m128i*)p), b = _mm_loadu_si128((const __m128i*)(p + 2 * __builtin_popcount(first)));
  return {widen_bf16(_mm_shuffle_epi8(a, _mm_load_si128((const __m128i*)kSpread.words[first]))),
          widen_bf16(_mm_shuffle_epi8(b, _mm_load_si128((const __m128i*)kSpread.words[second])))};
}
// Has a sum made where it stands: GCC would make all products of an unrolled loop first, and keep them on the stack.
inline __m256i now(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}
inline void reload() { asm("" ::: "memory"); }  // what was read is not kept in registers
inline __m256i broadcast(const void* p) {       // of 4 bytes
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}
inline __m256i add32(__m256i acc, __m256i x) { return now(_mm256_add_epi32(acc, x)); }
// Words (NARROWS_WORDS): a quad of codes as pairs of signed words, columns (0, 2) of its 16 rows and then (1, 3), less `offset`.
inline void put_codes(uint8_t* out, B quad, int offset) {
  __m256i even = _mm256_set1_epi16(0x00ff), o = _mm256_set1_epi16(short(offset));
  store(out, B{_mm256_sub_epi16(_mm256_and_si256(quad.lo, even), o), _mm256_sub_epi16(_mm256_and_si256(quad.hi, even), o)});
  store(out + 64, B{_mm256_sub_epi16(_mm256_srli_epi16(quad.lo, 8), o), _mm256_sub_epi16(_mm256_srli_epi16(quad.hi, 8), o)});
}
// 256 * high + low of 32 columns, of each quad the pair (0, 2) and then (1, 3).
inline void join(__m256i h, __m256i l, int16_t* out) {
  __m256i even = _mm256_add_epi16(_mm256_slli_epi16(h, 8), _mm256_srai_epi16(_mm256_slli_epi16(l, 8), 8));
  __m256i odd = _mm256_add_epi16(_mm256_and_si256(h, _mm256_set1_epi16(short(0xff00))), _mm256_srai_epi16(l, 8));
  __m256i first = _mm256_unpacklo_epi32(even, odd), second = _mm256_unpackhi_epi32(even, odd);
  _mm256_storeu_si256((__m256i*)out, _mm256_permute2x128_si256(first, second, 0x20));
  _mm256_storeu_si256((__m256i*)(out + 16), _mm256_permute2x128_si256(first, second, 0x31));
}
// From registers: memory that was just written is read again only after a while.
inline void put(const Activations& out, size_t at, const I (&high)[2], const I (&low)[2]) {
  __m256i h = narrow(high[0], high[1]), l = narrow(low[0], low[1]), raise = _mm256_set1_epi8(-128);
  _mm256_storeu_si256((__m256i*)(out.high + at * kUnit), h);
  _mm256_storeu_si256((__m256i*)(out.low + at * kUnit), l);
  join(h, l, out.words + at * kUnit);
  _mm256_storeu_si256((__m256i*)(out.raised + 2 * at * kUnit), _mm256_xor_si256(h, raise));
  _mm256_storeu_si256((__m256i*)(out.raised + (2 * at + 1) * kUnit), _mm256_xor_si256(l, raise));
}
// acc[n] += sum over i < 2 of w[2n + i] * x[i], in words
inline I dot_words(I acc, B w, const int16_t* x) {
  __m256i v = broadcast(x);
  return {add32(acc.lo, _mm256_madd_epi16(w.lo, v)), add32(acc.hi, _mm256_madd_epi16(w.hi, v))};
}
// Half a tile (kernels/halves-inl.h): four codes of each of 8 rows times what their columns hold.
inline P four_bytes(const int8_t* x) { return {broadcast(x)}; }
inline P two_words(const int16_t* x) { return {broadcast(x)}; }
inline P times_bytes(P q, P x) { return {_mm256_maddubs_epi16(q.v, x.v)}; }  // added by two
inline P plus_words(P a, P b) { return {now(_mm256_add_epi16(a.v, b.v))}; }
template <int N>
inline P add_times(P acc, P words) {  // acc[n] += N * (words[2n] + words[2n + 1])
  return {add32(acc.v, _mm256_madd_epi16(words.v, _mm256_set1_epi16(N)))};
}
inline P even_words(P q) { return {_mm256_and_si256(q.v, _mm256_set1_epi16(0x00ff))}; }
inline P odd_words(P q) { return {_mm256_srli_epi16(q.v, 8)}; }
inline P dot_words(P acc, P w, P x) { return {add32(acc.v, _mm256_madd_epi16(w.v, x.v))}; }
inline P half_of(const I& a, int half) { return {half ? a.hi : a.lo}; }
inline void set_half(I& a, int half, P p) { (half ? a.hi : a.lo) = p.v; }
inline void load_codes(const uint8_t* p, P& v) { v.v = _mm256_loadu_si256((const __m256i*)p); }

// Pairs (NARROWS_PAIRS): two kept of every four weights (kernels/pairs-inl.h).
// The columns of the two codes of each of 16 rows in the lower two bits, of which a shuffle of repeated quads needs no more; bit 7 is 0.
inline __m256i columns(const uint8_t* picks, int quad) {
  __m256i v = _mm256_loadu_si256((const __m256i*)(picks + quad / 4 * 32));
  v = _mm256_and_si256(quad & 1 ? _mm256_srli_epi16(v, 2) : v, _mm256_set1_epi8(0x33));
  return quad & 2 ? _mm256_srli_epi16(v, 4) : v;
}
// Codes of 8 bits are words: .lo those of rows 0..3 and 8..11, .hi those of rows 4..7 and 12..15.
inline I picked_words(const uint8_t* picks, int quad) {  // the shuffle that picks them out of a quad of words
  const __m256i places = _mm256_set1_epi32(0x06020400);  // bytes at which columns 0 to 3 lie
  __m256i low = _mm256_shuffle_epi8(places, columns(picks, quad)), high = _mm256_or_si256(low, _mm256_set1_epi8(1));
  return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
}
inline B words(const uint8_t* p) {
  __m256i v = _mm256_loadu_si256((const __m256i*)p);
  return {_mm256_srai_epi16(_mm256_unpacklo_epi8(v, v), 8), _mm256_srai_epi16(_mm256_unpackhi_epi8(v, v), 8)};
}
inline F in_order(F a) { return {_mm256_permute2f128_ps(a.lo, a.hi, 0x20), _mm256_permute2f128_ps(a.lo, a.hi, 0x31)}; }
inline I dot_picked(I acc, B w, I picked, const int16_t* x) {  // acc[n] += w[2n] * x[i] + w[2n + 1] * x[j]
  int64_t quad;
  __builtin_memcpy(&quad, x, 8);
  __m256i v = _mm256_set1_epi64x(quad);
  return {add32(acc.lo, _mm256_madd_epi16(w.lo, _mm256_shuffle_epi8(v, picked.lo))),
          add32(acc.hi, _mm256_madd_epi16(w.hi, _mm256_shuffle_epi8(v, picked.hi)))};
}
// Codes of 4 bits stay bytes: an unsigned byte of an activation times a signed code, two kept columns to a row, fit 16 bits
// over a unit: 8 * 2 * 255 * 8 < 2^15.
inline P zero_p() { return {_mm256_setzero_si256()}; }
inline P load_p(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
inline P nibbles(P w, bool upper) {  // signed
  __m256i t = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4,
                               -3, -2, -1);
  __m256i v = upper ? _mm256_srli_epi16(w.v, 4) : w.v;
  return {_mm256_shuffle_epi8(t, _mm256_and_si256(v, _mm256_set1_epi8(0x0f)))};
}
inline P picked_bytes(const uint8_t* picks, int quad) { return {columns(picks, quad)}; }
inline P add_bytes(P a, P b) { return {_mm256_add_epi8(a.v, b.v)}; }
inline P dot_picked(P acc, P w, P picked, const uint8_t* x) {  // acc[n] += w[2n] * x[i] + w[2n + 1] * x[j]
  __m256i v = _mm256_shuffle_epi8(broadcast(x), picked.v);
  return {now(_mm256_add_epi16(acc.v, _mm256_maddubs_epi16(v, w.v)))};
}
// 256 * high + low, each less 128 * (the codes of each row), which is what the 128 gave
inline I lowered(P high, P low, P codes) {
  __m256i given = _mm256_slli_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes.v), 7);
  __m256i h = _mm256_sub_epi16(high.v, given), l = _mm256_sub_epi16(low.v, given), bytes = _mm256_set1_epi32(256 << 16 | 1);
  return {_mm256_madd_epi16(_mm256_unpacklo_epi16(l, h), bytes), _mm256_madd_epi16(_mm256_unpackhi_epi16(l, h), bytes)};
}
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

// Sums in the order (i, i+8), (i, i+4), (i, i+2), (i, i+1) on every level.
inline float reduce_add(F a) {
  __m256 b = _mm256_add_ps(a.lo, a.hi);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float reduce_max(F a) {
  __m256 b = _mm256_max_ps(a.lo, a.hi);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

inline int32_t reduce_add(I a) {
  __m256i b = _mm256_add_epi32(a.lo, a.hi);
  __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
inline I shift_left(I a, int n) {
  __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count)};
}
