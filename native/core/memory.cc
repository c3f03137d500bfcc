#include "narrows/memory.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "narrows/ops.h"

namespace narrows {
namespace {
constexpr size_t kHuge = size_t(2) << 20;
size_t round_up(size_t n) { return (n + kHuge - 1) / kHuge * kHuge; }
}  // namespace

void* alloc_huge(size_t num_bytes) {
  size_t size = round_up(num_bytes ? num_bytes : 1);
  // Map a little more, keep the aligned part.
  void* raw = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  uintptr_t at = reinterpret_cast<uintptr_t>(raw), start = (at + kHuge - 1) / kHuge * kHuge;
  if (start > at) munmap(raw, start - at);
  if (size_t tail = at + kHuge - start) munmap(reinterpret_cast<void*>(start + size), tail);
  void* p = reinterpret_cast<void*>(start);
#ifdef MADV_HUGEPAGE
  madvise(p, size, MADV_HUGEPAGE);
#endif
  return p;
}

void free_huge(void* p, size_t num_bytes) {
  if (p) munmap(p, round_up(num_bytes ? num_bytes : 1));
}

double read_bandwidth(size_t num_bytes, int num_threads) {
  auto* buffer = static_cast<uint8_t*>(alloc_huge(num_bytes));
  std::memset(buffer, 1, num_bytes);
  std::vector<std::thread> threads;
  std::vector<uint64_t> sums(num_threads);
  auto start = std::chrono::steady_clock::now();
  for (int t = 0; t < num_threads; t++)
    threads.emplace_back([&, t] {
      size_t a = num_bytes / 64 * t / num_threads * 64, b = num_bytes / 64 * (t + 1) / num_threads * 64;
      sums[t] = ops().sum_bytes(buffer + a, b - a);
    });
  for (auto& t : threads) t.join();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  free_huge(buffer, num_bytes);
  return num_bytes / seconds / 1e9;
}

}  // namespace narrows
