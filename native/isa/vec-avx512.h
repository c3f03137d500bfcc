// 16 lanes on AVX-512. Included inside the anonymous namespace of one translation unit; see kernels/all-inl.h for the contract.
struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct B {
  __m512i v;
};

inline F zero_f() { return {_mm512_setzero_ps()}; }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
inline void store_part(float* p, F a, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a.v); }
inline F load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline F load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
// Lanes lo <= i < hi of a, `other` elsewhere.
inline F keep(F a, int lo, int hi, float other) {
  unsigned m = (hi >= 16 ? 0xffffu : hi <= 0 ? 0u : (1u << hi) - 1) & (lo <= 0 ? 0xffffu : lo >= 16 ? 0u : ~((1u << lo) - 1));
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), __mmask16(m), a.v)};
}
inline I round_i(F a) { return {_mm512_cvtps_epi32(a.v)}; }

inline I zero_i() { return {_mm512_setzero_si512()}; }
inline I set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I load_i(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I operator-(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline F to_f(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I load_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline void store_i8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(a.v)); }
// 2^n for n in [-126, 127]
inline F exp2_i(I n) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))}; }

inline B load_b(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(uint8_t* p, B a) { _mm512_storeu_si512(p, a.v); }
template <int N>
inline B shift(B a) {  // left by N bits within 16, right when N < 0
  if constexpr (N > 0) return {_mm512_slli_epi16(a.v, N)};
  if constexpr (N < 0) return {_mm512_srli_epi16(a.v, -N)};
  return a;
}
inline B mask(B a, uint8_t m) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(char(m)))}; }
inline B or_mask(B a, B b, uint8_t m) {  // a | (b & m)
  return {_mm512_ternarylogic_epi32(a.v, b.v, _mm512_set1_epi8(char(m)), 0xf8)};
}
inline B flip(B a, uint8_t m) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(char(m)))}; }
// From a register: some processors expand from memory in microcode.
inline B expand(const uint8_t* p, uint64_t bits) { return {_mm512_maskz_expand_epi8(bits, _mm512_loadu_si512(p))}; }
inline F expand_bf16(const uint8_t* p, uint16_t bits) {
  __m256i v = _mm256_maskz_expand_epi16(bits, _mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))};
}
// acc[n] += sum over i of w[4n + i] * x[i]: unsigned codes below 2^BITS, signed x
template <int BITS>
inline I dot(I acc, B w, const int8_t* x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, 4);
  return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(quad))};
}
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

// Sums in the order (i, i+8), (i, i+4), (i, i+2), (i, i+1), as on every level: spelled out, since a compiler may choose another.
template <class Op>
inline float reduce(__m512 v, Op op) {
  __m256 a = op(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm256_castps256_ps128(op(a, _mm256_permute2f128_ps(a, a, 1)));
  __m256 c = _mm256_castps128_ps256(b);
  c = op(c, _mm256_permute_ps(c, 0x4e));
  c = op(c, _mm256_permute_ps(c, 0xb1));
  return _mm256_cvtss_f32(c);
}
inline float reduce_add(F a) {
  return reduce(a.v, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); });
}
inline float reduce_max(F a) {
  return reduce(a.v, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); });
}

inline int32_t reduce_add(I a) { return _mm512_reduce_add_epi32(a.v); }
// left by n bits, n only known at run time
inline I shift_left(I a, int n) { return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(n))}; }
