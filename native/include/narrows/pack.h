// Packing: a checkpoint's bytes, or floats, into the layout of format.h. Off the hot path, but multi-threaded by row tiles.
#pragma once
#include <cstdint>
#include <string>

#include "narrows/format.h"

namespace narrows {

// The format that holds GGUF tensor type `type` (ggml's numbering) exactly; false when the type is not known.
bool gguf_format(int type, Format* format);
// Bytes of one row of `cols` values of GGUF type `type`; 0 when cols is not a multiple of the type's block.
size_t gguf_row_bytes(int type, int64_t cols);

// Packs `rows` rows of GGUF type `type` from `src` (rows * gguf_row_bytes) into `dst` (packed_bytes). Same weights bit for bit.
void pack_gguf(int type, const uint8_t* src, int rows, int cols, uint8_t* dst, int num_threads);

// Packs floats w [rows, cols] into any format. Integer formats choose scale (and minimum) per group by minimising the squared
// error over a small grid around the absolute-maximum scale; float formats round to nearest even.
void pack_float(const Format& format, const float* w, int rows, int cols, uint8_t* dst, int num_threads);

// Weights of which only those under a mask are kept; [rows, cols] each, row by row.
struct Kept {
  int rows, cols;
  const uint8_t* codes;    // a byte each; bfloat16 when the format is
  const uint8_t* mask;     // not zero: kept
  const uint16_t* scales;  // f16 [rows, groups]; null for bfloat16
};
// Bytes of the packed matrix in a sparse format, and the packing itself; with `pairs` tiles in pairs are told apart.
size_t sparse_bytes(const Format& format, const Kept& w, int num_threads);
void pack_sparse(const Format& format, const Kept& w, bool pairs, uint8_t* dst, int num_threads);

// Decodes row n of a packed matrix to out [cols]: the embedding lookup, and a check of the packer.
void unpack_row(const Matrix& m, int row, float* out);

}  // namespace narrows
