// Weight formats and the packed layout. Plain structs: no Python, no allocation.
//
// A packed matrix is a row of tiles; a tile holds 16 output rows (lane n of tile t is row 16t + n) and all of K:
//
//   int formats, every section starting where the last ended:
//     super scales  [K/256][16] f16       two_level only
//     super mins    [K/256][16] f16       two_level and minimum
//     scales        [K/group][16]         f16, or i8 when two_level
//     mins          [K/group][16]         the same type; minimum only
//     (zero bytes up to a multiple of 64)
//     units         [K/32]                one unit = 32 columns of 16 rows = bits * 64 bytes
//
//   A unit holds the unsigned code q of each weight, split in bit planes, the highest plane first, each plane a run of 64-byte
//   vectors. Bits of a code are shared out as 8 | 4+2 | 4+1 | 4 | 2+1 | 2, so int6 is a 4-bit plane with bits 0..3 of q followed
//   by a 2-bit plane with bits 4..5; int3 is a 2-bit plane (bits 0..1) and a 1-bit plane (bit 2).
//   "Quad" j (0..7) is the 64-byte vector whose byte 4n + i is the code of row n, column 4j + i (the order of a VNNI operand).
//     8-bit plane: 8 vectors, vector j = quad j
//     4-bit plane: 4 vectors, vector v: low nibble = quad v, high nibble = quad v + 4
//     2-bit plane: 2 vectors, vector v: bits 2s..2s+1 = quad v + 2s   (s = 0..3)
//     1-bit plane: 1 vector, bit s = quad s                          (s = 0..7)
//
//   Value of a weight: flat      w = s * q + m               (minimum)   or s * (q - offset), offset = 2^(bits-1)
//                      two_level w = (d*s) * q + (dm*m)      (minimum)   or (d*s) * (q - offset)
//   K is rounded up to a multiple of 32 (256 when two_level, 64 when group is 64); padding columns meet zero activations.
//   Rows are rounded up to a multiple of 16; padding rows hold zero scales.
//
//   float formats (bits = 0): tile = [K][16] elements of f32, f16 or bf16; K is not padded.
#pragma once
#include <cstddef>
#include <cstdint>

// Header functions used by files compiled for a wider instruction set must leave no copy that other files could link to.
#define NARROWS_INLINE inline __attribute__((always_inline))

namespace narrows {

constexpr int kLanes = 16;   // output rows in a tile, and lanes of every vector in the kernels
constexpr int kUnit = 32;    // columns in a unit, and columns sharing one activation scale
constexpr int kSuper = 256;  // columns sharing a super scale

enum class Float : uint8_t { none, f32, f16, bf16 };

struct Format {
  uint8_t bits = 0;        // 2, 3, 4, 5, 6, 8; 0 for a float format
  uint8_t group = 0;       // columns sharing a scale: 16, 32 or 64; 0 for a float format
  bool minimum = false;    // w = s*q + m instead of s*(q - offset)
  bool two_level = false;  // i8 scales under an f16 super scale per 256 columns
  Float type = Float::none;

  NARROWS_INLINE bool valid() const {
    if (type != Float::none) return bits == 0 && group == 0 && !minimum && !two_level;
    bool known = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
    return known && (group == 16 || group == 32 || (group == 64 && !two_level));
  }
  NARROWS_INLINE int offset() const { return minimum ? 0 : 1 << (bits - 1); }
  NARROWS_INLINE int element_size() const { return type == Float::f32 ? 4 : 2; }
};

// Where the sections of one tile lie, in bytes from its start.
struct Layout {
  int cols = 0;  // padded K
  size_t super_scales = 0, super_mins = 0, scales = 0, mins = 0, units = 0, tile_bytes = 0;

  NARROWS_INLINE Layout(const Format& f, int k) {
    if (f.type != Float::none) {
      cols = k;
      tile_bytes = (size_t(k) * kLanes * f.element_size() + 63) / 64 * 64;
      return;
    }
    int step = f.two_level ? kSuper : f.group == 64 ? 64 : kUnit;
    cols = (k + step - 1) / step * step;
    size_t supers = f.two_level ? size_t(cols / kSuper) * kLanes * 2 : 0;
    size_t groups = size_t(cols / f.group) * kLanes * (f.two_level ? 1 : 2);
    super_mins = supers;
    scales = super_mins + (f.minimum ? supers : 0);
    mins = scales + groups;
    units = (mins + (f.minimum ? groups : 0) + 63) / 64 * 64;
    tile_bytes = units + size_t(cols / kUnit) * f.bits * 64;
  }
};

NARROWS_INLINE int num_tiles(int rows) { return (rows + kLanes - 1) / kLanes; }
NARROWS_INLINE size_t packed_bytes(const Format& f, int rows, int cols) {
  return size_t(num_tiles(rows)) * Layout(f, cols).tile_bytes;
}

// A packed matrix [rows, cols], row-major in meaning: y[n] = sum_k w[n, k] x[k]. The bytes are borrowed.
struct Matrix {
  Format format;
  int rows = 0, cols = 0;
  const uint8_t* data = nullptr;
  NARROWS_INLINE explicit operator bool() const { return data != nullptr; }
  NARROWS_INLINE size_t bytes() const { return packed_bytes(format, rows, cols); }
};

}  // namespace narrows
