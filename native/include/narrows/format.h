// Weight formats and the packed layout. Plain structs: no Python, no allocation.
//
// A packed matrix is a row of tiles; a tile holds 16 output rows (lane n of tile t is row 16t + n) and all of K. What is read
// together lies together, so that a product reads one unbroken stream: nothing else comes near the speed of the memory.
//
//   int formats: a tile is a row of blocks; a block is a header and then its units.
//     header:  super scales  [16] f16              two_level only
//              super mins    [16] f16              two_level and minimum
//              scales        [groups][16]          f16, or i8 when two_level
//              mins          [groups][16]          the same type; minimum only
//              (zero bytes up to a multiple of 64)
//     units:   one unit = 32 columns of 16 rows = bits * 64 bytes
//   A block spans 256 columns when two_level; else 128 (group 64), 64 (group 32) or 32 (group 16), and half of that with a
//   minimum when the group is 32 or 64: the fewest that fill whole cache lines. The last block of a tile has a whole header but
//   only the units that K needs. K is rounded up to a multiple of 32; padding columns meet zero activations.
//
//   A unit holds the unsigned code q of each weight, split in bit planes, the largest plane first, each plane a run of 64-byte
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
//   Rows are rounded up to a multiple of 16; padding rows hold zero scales.
//
//   sparse int formats (symmetric, flat, groups of 32 or 64): blocks and headers as above, but a unit is
//     mask     [8] u64                            bit 4n + i of word j: row n, column 4j + i is kept
//     planes   the kept codes XOR offset, each plane 8 / width runs in the slots of its bytes: slot s holds, without gaps, the
//              codes of quads s * width .. (s + 1) * width - 1. A plane is as long as its longest run; the rest are zero bits. A
//              unit of an odd number of bytes has one more, so that scales lie at even addresses.
//   A weight that is not kept is zero. Tiles differ in length, so a sparse matrix begins with where they start, in bytes from its own
//   beginning: u64 [tiles + 1], the last being its end, then zero bytes up to a multiple of 64; 64 more lie behind its end. A start
//   is even; 1 is added to it where the tile is "in pairs": each row keeps two of the four weights in every quad (4 and 8 bits only),
//   and instead of masks a unit begins with
//     picks    [2][32] u8                         bits 2q .. 2q+1 of byte 2n + k of [v]: the column in quad 4v + q of row n's k-th code
//   sparse bf16: for every 32 columns, masks [32] u16, bit n for row n, then the kept values, column by column.
//
//   float formats (bits = 0): tile = [K][16] elements of f32, f16 or bf16, then zero bytes up to a multiple of 64; K is not padded.
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
  bool sparse = false;  // only kept weights are stored, under a mask of one bit a weight

  NARROWS_INLINE bool valid() const {
    if (sparse && (type == Float::none ? minimum || two_level || group == 16 : type != Float::bf16)) return false;
    if (type != Float::none) return bits == 0 && group == 0 && !minimum && !two_level;
    bool known = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
    return known && (group == 16 || group == 32 || (group == 64 && !two_level));
  }
  NARROWS_INLINE bool has_pairs() const { return sparse && (bits == 4 || bits == 8); }
  NARROWS_INLINE int offset() const { return minimum ? 0 : 1 << (bits - 1); }
  NARROWS_INLINE int element_size() const { return type == Float::f32 ? 4 : 2; }
};

// Where things lie in a tile.
struct Layout {
  int num_units = 0, block_units = 1, block_groups = 0;     // of K; in a block
  size_t super_mins = 0, scales = 0, mins = 0, header = 0;  // bytes from the start of a block (super scales are at 0)
  size_t unit_bytes = 0, block_bytes = 0, tile_bytes = 0;

  NARROWS_INLINE Layout(const Format& f, int cols) {
    if (f.type != Float::none) {
      tile_bytes = (size_t(cols) * kLanes * f.element_size() + 63) / 64 * 64;
      return;
    }
    int span = f.two_level ? kSuper : f.group == 16 ? 32 : 2 * f.group / (f.minimum ? 2 : 1);
    num_units = (cols + kUnit - 1) / kUnit;
    block_units = span / kUnit;
    block_groups = span / f.group;
    size_t supers = f.two_level ? kLanes * 2 : 0, groups = size_t(block_groups) * kLanes * (f.two_level ? 1 : 2);
    super_mins = supers;
    scales = super_mins + (f.minimum ? supers : 0);
    mins = scales + groups;
    header = (mins + (f.minimum ? groups : 0) + 63) / 64 * 64;
    unit_bytes = size_t(f.bits) * 64;
    block_bytes = header + block_units * unit_bytes;
    tile_bytes = size_t((num_units + block_units - 1) / block_units) * header + num_units * unit_bytes;
  }
  // Start of the block of a unit, and of the unit itself, in bytes from the start of a dense tile.
  NARROWS_INLINE size_t block(int unit) const { return size_t(unit / block_units) * block_bytes; }
  NARROWS_INLINE size_t unit(int unit) const { return block(unit) + header + size_t(unit % block_units) * unit_bytes; }
};

// The masks that the picks of a unit in pairs stand for.
NARROWS_INLINE void masks_of(const uint8_t* picks, uint64_t (&masks)[8]) {
  for (int j = 0; j < 8; j++) {
    masks[j] = 0;
    for (int i = 0; i < 2 * kLanes; i++)
      masks[j] |= uint64_t(1) << (4 * (i / 2) + (picks[32 * (j / 4) + i] >> (2 * (j % 4)) & 3));
  }
}

NARROWS_INLINE int num_tiles(int rows) { return (rows + kLanes - 1) / kLanes; }
// Of a dense matrix.
NARROWS_INLINE size_t packed_bytes(const Format& f, int rows, int cols) {
  return size_t(num_tiles(rows)) * Layout(f, cols).tile_bytes;
}

// A packed matrix [rows, cols], row-major in meaning: y[n] = sum_k w[n, k] x[k]. The bytes are borrowed.
struct Matrix {
  Format format;
  int rows = 0, cols = 0;
  const uint8_t* data = nullptr;
  NARROWS_INLINE explicit operator bool() const { return data != nullptr; }
  NARROWS_INLINE const uint8_t* tile(const Layout& at, int t) const {  // t may be one past the last
    return data + (format.sparse ? offset(t) : size_t(t) * at.tile_bytes);
  }
  NARROWS_INLINE size_t bytes() const { return format.sparse ? offset(num_tiles(rows)) : packed_bytes(format, rows, cols); }
  NARROWS_INLINE uint64_t entry(int t) const {
    uint64_t at;
    __builtin_memcpy(&at, data + 8 * size_t(t), 8);
    return at;
  }
  NARROWS_INLINE uint64_t offset(int t) const { return entry(t) & ~uint64_t(1); }
  NARROWS_INLINE bool in_pairs(int t) const { return entry(t) & 1; }
};

}  // namespace narrows
