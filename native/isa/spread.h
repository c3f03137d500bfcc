// Shuffles that spread the first bytes, or words, of a vector over the bits set in a mask of eight; 0x80 and above give zero.
struct Spread {
  alignas(16) uint8_t bytes[256][8];
  alignas(16) uint8_t words[256][16];
  alignas(16) uint8_t after[9][16];  // what the shuffle of a second mask adds when the first has this many bits
  constexpr Spread() : bytes{}, words{}, after{} {
    for (int m = 0; m < 256; m++)
      for (int i = 0, n = 0; i < 8; i++) {
        bool set = m >> i & 1;
        bytes[m][i] = set ? uint8_t(n) : 0x80;
        words[m][2 * i] = set ? uint8_t(2 * n) : 0x80;
        words[m][2 * i + 1] = set ? uint8_t(2 * n + 1) : 0x80;
        n += set;
      }
    for (int n = 0; n < 9; n++)
      for (int i = 8; i < 16; i++) after[n][i] = uint8_t(n);
  }
};
constexpr Spread kSpread;
