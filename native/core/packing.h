// What packing dense and sparse matrices has in common. Not for the kernels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "narrows/format.h"

namespace narrows {

inline uint16_t read16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
inline void put16(uint8_t* p, int lane, uint16_t v) { std::memcpy(p + 2 * lane, &v, 2); }

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

// The 32 codes of one lane of a sparse unit, as they were before packing; returns the unit's end.
const uint8_t* get_kept(int bits, const uint8_t* unit, bool in_pairs, int lane, uint8_t* q);

}  // namespace narrows
