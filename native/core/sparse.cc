// Packing of sparse matrices: the kept weights under their masks (format.h).
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/packing.h"
#include "narrows/pack.h"

namespace narrows {
namespace {

// Calls body(width, shift) for the planes of a code, widest first.
template <class Body>
void each_plane(int bits, Body body) {
  int shift = 0;
  for (int width : {8, 4, 2, 1})
    if (bits >= width) {
      body(width, shift);
      shift += width, bits -= width;
    }
}

// Which columns of its quads each row keeps, in the place of the masks of a unit in pairs.
void put_picks(const uint64_t (&masks)[8], uint8_t* picks) {
  for (int j = 0; j < 8; j++) {
    uint64_t left = masks[j];
    for (int i = 0; left; left &= left - 1, i++) picks[32 * (j / 4) + i] |= uint8_t(__builtin_ctzll(left) % 4 << (2 * (j % 4)));
  }
}

// A sparse unit of masks and quads (codes already XOR offset); `unit` may be null to learn its size.
size_t put_kept(int bits, const uint64_t (&masks)[8], const uint8_t (&quads)[8][64], bool in_pairs, uint8_t* unit) {
  size_t size = 64;
  if (unit && in_pairs) put_picks(masks, unit);
  if (unit && !in_pairs) std::memcpy(unit, masks, 64);
  each_plane(bits, [&](int width, int shift) {
    size_t longest = 0;
    for (int s = 0; s < 8 / width; s++) {
      size_t n = 0;
      for (int j = s * width; j < (s + 1) * width; j++)
        for (uint64_t left = masks[j]; left; left &= left - 1, n++)
          if (unit) unit[size + n] |= uint8_t((quads[j][__builtin_ctzll(left)] >> shift & ((1 << width) - 1)) << (s * width));
      longest = std::max(longest, n);
    }
    size += longest;
  });
  return size + size % 2;
}

// Whether two of every four weights are kept.
bool two_of_four(uint64_t mask) {
  constexpr uint64_t ones = 0x1111111111111111;
  return (mask & ones) + (mask >> 1 & ones) + (mask >> 2 & ones) + (mask >> 3 & ones) == 2 * ones;
}

struct Tile {
  size_t size = 0;
  bool in_pairs = true;
};

// One tile of kept weights: [count] rows of codes, mask bytes and scales. `tile` may be null to learn what it is; else it is zero,
// and `in_pairs` says how to write it.
Tile put_sparse(const Format& f, const Layout& at, const Kept& w, int first, int count, bool in_pairs, uint8_t* tile) {
  Tile out;
  size_t& size = out.size;
  if (f.type == Float::bf16) {
    out.in_pairs = false;
    for (int k0 = 0; k0 < w.cols; k0 += kUnit) {
      size_t masks = size;
      size += 2 * kUnit;
      for (int k = k0; k < std::min(k0 + kUnit, w.cols); k++) {
        uint16_t bits = 0;
        for (int n = 0; n < count; n++) {
          size_t i = size_t(first + n) * w.cols + k;
          if (!w.mask[i]) continue;
          bits |= uint16_t(1 << n);
          if (tile) std::memcpy(tile + size, w.codes + 2 * i, 2);
          size += 2;
        }
        if (tile) std::memcpy(tile + masks + 2 * (k - k0), &bits, 2);
      }
    }
    return out;
  }
  int groups = (w.cols + f.group - 1) / f.group;
  for (int u = 0; u < at.num_units; u++) {
    if (u % at.block_units == 0) {
      if (tile)
        for (int g = u * kUnit / f.group, i = 0; i < at.block_groups && g + i < groups; i++)
          for (int n = 0; n < count; n++)
            put16(tile + size + at.scales + i * kLanes * 2, n, w.scales[size_t(first + n) * groups + g + i]);
      size += at.header;
    }
    uint64_t masks[8] = {};
    uint8_t quads[8][64];
    for (int n = 0; n < count; n++)
      for (int k = u * kUnit; k < std::min((u + 1) * kUnit, w.cols); k++) {
        size_t i = size_t(first + n) * w.cols + k;
        int j = k % kUnit / 4, bit = 4 * n + k % 4;
        masks[j] |= uint64_t(w.mask[i] != 0) << bit;
        quads[j][bit] = uint8_t(w.codes[i] ^ f.offset());
      }
    size += put_kept(f.bits, masks, quads, in_pairs, tile ? tile + size : nullptr);
    out.in_pairs &= std::all_of(masks, masks + 8, two_of_four);
  }
  return out;
}

// Where the tiles start, as a sparse matrix's data begin with it.
std::vector<uint64_t> sparse_offsets(const Format& f, const Kept& w, bool pairs, int num_threads) {
  std::vector<Tile> tiles(num_tiles(w.rows));
  Layout layout(f, w.cols);
  by_tiles(w.rows, num_threads, [&](int first, int last) {
    for (int n = first; n < last; n += kLanes)
      tiles[n / kLanes] = put_sparse(f, layout, w, n, std::min(kLanes, last - n), false, nullptr);
  });
  std::vector<uint64_t> at;
  size_t start = (8 * (tiles.size() + 1) + 63) / 64 * 64;
  for (const Tile& tile : tiles) {
    at.push_back(start + (pairs && f.has_pairs() && tile.in_pairs));
    start += tile.size;
  }
  at.push_back(start);
  return at;
}

}  // namespace

const uint8_t* get_kept(int bits, const uint8_t* unit, bool in_pairs, int lane, uint8_t* q) {
  uint64_t masks[8];
  const uint8_t* start = unit;
  if (in_pairs)
    masks_of(unit, masks);
  else
    std::memcpy(masks, unit, 64);
  unit += 64;
  std::memset(q, 1 << (bits - 1), kUnit);
  for (int k = 0; k < kUnit; k++)
    if (masks[k / 4] >> (4 * lane + k % 4) & 1) q[k] = 0;
  each_plane(bits, [&](int width, int shift) {
    size_t longest = 0;
    for (int s = 0; s < 8 / width; s++) {
      size_t n = 0;
      for (int j = s * width; j < (s + 1) * width; j++) {
        for (int i = 0; i < 4; i++) {
          int bit = 4 * lane + i;
          if (!(masks[j] >> bit & 1)) continue;
          size_t before = n + size_t(__builtin_popcountll(masks[j] & ((uint64_t(1) << bit) - 1)));
          q[4 * j + i] |= uint8_t((unit[before] >> (s * width) & ((1 << width) - 1)) << shift);
        }
        n += size_t(__builtin_popcountll(masks[j]));
      }
      longest = std::max(longest, n);
    }
    unit += longest;
  });
  for (int k = 0; k < kUnit; k++)
    if (masks[k / 4] >> (4 * lane + k % 4) & 1) q[k] ^= uint8_t(1 << (bits - 1));
  return unit + (unit - start) % 2;
}

size_t sparse_bytes(const Format& f, const Kept& w, int num_threads) {
  return sparse_offsets(f, w, false, num_threads).back() + 64;
}

void pack_sparse(const Format& f, const Kept& w, bool pairs, uint8_t* dst, int num_threads) {
  std::vector<uint64_t> at = sparse_offsets(f, w, pairs, num_threads);
  std::memset(dst, 0, at.back() + 64);
  std::memcpy(dst, at.data(), 8 * at.size());
  Layout layout(f, w.cols);
  by_tiles(w.rows, num_threads, [&](int first, int last) {
    for (int n = first; n < last; n += kLanes) {
      uint64_t start = at[n / kLanes];
      put_sparse(f, layout, w, n, std::min(kLanes, last - n), start & 1, dst + (start & ~uint64_t(1)));
    }
  });
}

}  // namespace narrows
