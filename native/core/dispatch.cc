// Picks the ISA level once, from CPUID, the operating system's word on register state, and NARROWS_ISA.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "narrows/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace narrows {

extern const OpTable scalar_ops;
#if defined(__x86_64__)
extern const OpTable avx2_ops, avx512_ops, amx_ops;
#elif defined(__aarch64__)
extern const OpTable neon_ops;
#endif

namespace {

#if defined(__x86_64__)
bool bit(unsigned reg, int n) { return reg >> n & 1; }

uint64_t xcr0() {
  uint32_t lo, hi;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return uint64_t(hi) << 32 | lo;
}

// 0 scalar, 1 avx2, 2 avx512 with VNNI and VBMI2, 3 amx int8
int x86_level() {
  unsigned a, b, c, d, max = __get_cpuid_max(0, nullptr);
  if (max < 7 || !__get_cpuid(1, &a, &b, &c, &d)) return 0;
  bool osxsave = bit(c, 27), fma = bit(c, 12), f16c = bit(c, 29), popcnt = bit(c, 23);
  if (!osxsave || (xcr0() & 0x6) != 0x6 || !fma || !f16c || !popcnt) return 0;
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  if (!bit(b, 5) || !bit(b, 3) || !bit(b, 8)) return 0;                // AVX2 BMI1 BMI2
  bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F DQ BW VL
  bool wide = bit(c, 1) && bit(c, 6) && bit(c, 11);                    // VBMI VBMI2 VNNI
  if (!avx512 || !wide || (xcr0() & 0xe6) != 0xe6) return 1;
  bool amx = bit(d, 24) && bit(d, 25);
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (!amx || (xcr0() & 0x60000) != 0x60000 || syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 2;
  return 3;
}
#endif

const OpTable* choose() {
  const OpTable* levels[8];
  int n = list_ops(levels, 8);
  if (const char* want = std::getenv("NARROWS_ISA"); want && *want) {
    if (const OpTable* t = find_ops(want)) return t;
    std::fprintf(stderr, "narrows: NARROWS_ISA=%s is not a level of this machine; using %s\n", want, levels[n - 1]->name);
  }
  return levels[n - 1];
}

}  // namespace

int list_ops(const OpTable** out, int n) {
  int count = 0;
  auto put = [&](const OpTable& t) {
    if (count < n) out[count++] = &t;
  };
  put(scalar_ops);
#if defined(__x86_64__)
  static const int level = x86_level();
  if (level >= 1) put(avx2_ops);
  if (level >= 2) put(avx512_ops);
  if (level >= 3) put(amx_ops);
#elif defined(__aarch64__)
  put(neon_ops);
#endif
  return count;
}

const OpTable* find_ops(const char* name) {
  const OpTable* levels[8];
  for (int i = list_ops(levels, 8) - 1; i >= 0; i--)
    if (!std::strcmp(levels[i]->name, name)) return levels[i];
  return nullptr;
}

const OpTable& ops() {
  static const OpTable* chosen = choose();
  return *chosen;
}

}  // namespace narrows
