// Tile registers: the instructions themselves, or with NARROWS_EMULATE_TILES their meaning in plain C++, so that the tile kernels
// are tested on machines without them. Included inside the anonymous namespace of one translation unit.
#ifdef NARROWS_EMULATE_TILES
struct TileState {
  int rows[8], bytes[8];
  uint8_t data[8][16][64];
};
thread_local TileState tiles;

inline void set_tiles(const uint8_t* rows, const uint16_t* bytes) {
  __builtin_memset(&tiles, 0, sizeof tiles);
  for (int i = 0; i < 8; i++) {
    tiles.rows[i] = rows[i];
    tiles.bytes[i] = bytes[i];
  }
}
inline void release_tiles() { __builtin_memset(&tiles, 0, sizeof tiles); }
template <int T>
inline void tile_zero() {
  __builtin_memset(tiles.data[T], 0, sizeof tiles.data[T]);
}
template <int T>
inline void tile_load(const void* p, int stride) {
  tile_zero<T>();
  for (int r = 0; r < tiles.rows[T]; r++) __builtin_memcpy(tiles.data[T][r], (const uint8_t*)p + r * stride, tiles.bytes[T]);
}
template <int T>
inline void tile_store(void* p, int stride) {
  for (int r = 0; r < tiles.rows[T]; r++) __builtin_memcpy((uint8_t*)p + r * stride, tiles.data[T][r], tiles.bytes[T]);
}
// C[m][n] += sum over k of A[m][k] (signed bytes) * B[k / 4][4n + k % 4] (unsigned bytes)
template <int C, int A, int B>
inline void tile_dot() {
  for (int m = 0; m < tiles.rows[C]; m++)
    for (int n = 0; n < tiles.bytes[C] / 4; n++) {
      int32_t sum;
      __builtin_memcpy(&sum, &tiles.data[C][m][4 * n], 4);
      for (int k = 0; k < tiles.bytes[A]; k++) sum += int8_t(tiles.data[A][m][k]) * int32_t(tiles.data[B][k / 4][4 * n + k % 4]);
      __builtin_memcpy(&tiles.data[C][m][4 * n], &sum, 4);
    }
}
#else
inline void set_tiles(const uint8_t* rows, const uint16_t* bytes) {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config = {1, 0, {}, {}, {}};
  for (int i = 0; i < 8; i++) {
    config.rows[i] = rows[i];
    config.bytes[i] = bytes[i];
  }
  asm volatile("" : : "r"(&config) : "memory");  // gcc 12 takes the load to read 8 bytes and drops the other stores
  _tile_loadconfig(&config);
}
inline void release_tiles() { _tile_release(); }
// Spelled in assembly: gcc's intrinsics are macros that want a literal register number.
template <int T>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
inline void tile_load(const void* p, int stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(long(stride)), "i"(T) : "memory");
}
template <int T>
inline void tile_store(void* p, int stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(long(stride)), "i"(T) : "memory");
}
template <int C, int A, int B>
inline void tile_dot() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
#endif
