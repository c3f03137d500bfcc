// The op table: every function whose body depends on the instruction set. One table per ISA level, chosen once.
#pragma once
#include <cstddef>
#include <cstdint>

#include "narrows/format.h"

namespace narrows {

constexpr int kRows = 16;   // activation rows in a block
constexpr int kPage = 64;   // tokens in a KV page
constexpr int kPart = 256;  // tokens in a partition of the context: the unit of attention's fixed reduction

// Activations of T rows as 16-bit integers in two signed bytes, by units of 32 columns: x = scale * (256 * high + low). Products with
// the bytes are exact; one byte alone would flip about one first choice in forty. Blocks hold at most 16 rows: block b (rows 16b ...)
// has n = min(16, T - 16b) rows and starts at entry 16b * num_units of each array:
//   high, low [unit][n][32]   padding columns 0
//   words     [unit][n][32]   256 * high + low, of each quad the columns (0, 2, 1, 3); only where a level multiplies words
//   raised    [unit][n][2][32]  high, then low, plus 128; only where a level picks activations for sparse weights
//   scale     [unit][n]       max|x| / (127 * 256)
// and, because the codes of weights are unsigned, over the unit ([unit][n]) and over each half of it ([unit][2][n]):
//   sums      minus the sum of the integers    (a symmetric format adds it offset times)
//   values    scale times their sum            (what a minimum is multiplied by)
// `f` are the same rows in float, row-major [T][cols], for float weight formats.
struct Activations {
  int rows = 0, cols = 0;
  int8_t *high = nullptr, *low = nullptr;
  int16_t* words = nullptr;
  uint8_t* raised = nullptr;
  float* scale = nullptr;
  struct Sums {
    int32_t* sums = nullptr;
    float* values = nullptr;
  } unit, half;
  const float* f = nullptr;

  NARROWS_INLINE int num_units() const { return (cols + kUnit - 1) / kUnit; }
  NARROWS_INLINE int num_blocks() const { return (rows + kRows - 1) / kRows; }
  NARROWS_INLINE int block_rows(int b) const { return rows - b * kRows < kRows ? rows - b * kRows : kRows; }
};

// One KV head of one request, as attention reads it. Page i of the request is at `pages[i]`: keys as [D][S] bf16, so that one vector
// holds a dimension of 16 tokens, then values as [S][D] bf16. A page ahead of the one in hand is fetched, up to num_pages.
struct KvView {
  const uint16_t* const* pages;
  int num_pages, head_dim;
};

// A partial softmax over part of the context, of one query: max, sum of exp(score - max), and the values so weighted.
struct Partial {
  float max, sum;
  float* acc;  // [D]
};

struct OpTable {
  const char* name;
  bool pairs;  // products gain from sparse tiles in pairs, and matrices are packed so

  // y[t][n] = sum_k w[n][k] x[t][k] for the rows of tiles [tile0, tile1), all rows t; y has leading dimension ldy.
  // `scratch` holds matmul_scratch(x.rows) bytes, 64-aligned.
  void (*matmul)(const Matrix& w, const Activations& x, int tile0, int tile1, float* y, size_t ldy, void* scratch);
  // Units [unit0, unit1) of x [cols] into row t of the activations.
  void (*quantize)(const float* x, int t, int unit0, int unit1, const Activations& out);

  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  void (*add)(float* x, const float* y, int n);                                   // x += y
  void (*scale)(float* x, float s, int n);                                        // x *= s
  void (*glu)(const float* gate, const float* up, int n, bool gelu, float* out);  // act(gate) * up
  void (*rope)(float* x, const float* cos, const float* sin, int dim);            // half-split pairs, in place
  // Key and value of one head into slot `offset` (0..S-1) of a page.
  void (*write_kv)(const float* k, const float* v, int offset, int head_dim, uint16_t* page);

  // Attention of num_q queries over entries [part * kPart, (part + 1) * kPart) clipped to [lo[i], hi[i]) for query i.
  // out[i] is overwritten; a query with nothing to see gets sum 0. `scratch` holds attention_scratch(D) bytes.
  void (*attend)(const float* const* q, int num_q, float scale, const KvView& kv, int part, const int* lo, const int* hi,
                 Partial* out, void* scratch);
  // into += part, in the order of the context; `into` with sum 0 takes `part` as it is.
  void (*merge)(Partial* into, const Partial& part, int head_dim);
  void (*finish)(const Partial& p, int head_dim, float* out);  // acc / sum

  uint64_t (*sum_bytes)(const uint8_t* p, size_t n);  // reads n bytes as fast as it can
};

// Bytes of scratch a matmul needs: a decoded stretch of two tiles, and an accumulator a row and tile.
constexpr int kStretch = 16;  // units decoded at a time: 16 KiB of codes, half of a small L1
constexpr int kPair = 2;      // tiles that share the activations
NARROWS_INLINE size_t matmul_scratch(int rows) {
  return size_t(kPair) * kStretch * (512 + 4 * 64) + size_t(rows) * kPair * 64 + 256;
}
// Bytes of scratch for attention: scores of the queries in hand, one page widened to floats.
NARROWS_INLINE size_t attention_scratch(int head_dim) { return size_t(8) * kPage * 4 + size_t(kPage) * head_dim * 8 + 256; }

const OpTable& ops();                       // the chosen level
const OpTable* find_ops(const char* name);  // a level this machine can run, or null
int list_ops(const OpTable** out, int n);   // the levels this machine can run, slowest first

}  // namespace narrows
