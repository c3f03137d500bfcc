#include "narrows/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace narrows {
namespace {
inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
constexpr int kSpins = 4000;  // about 50 us: longer than any gap between two members on a free machine

// Returns when the value is as wanted: spins, then sleeps until it is told of a change.
template <class T, class Wanted>
void await(const std::atomic<T>& value, Wanted wanted) {
  T now = value.load(std::memory_order_acquire);
  for (int spin = 0; spin < kSpins && !wanted(now); spin++) {
    pause();
    now = value.load(std::memory_order_acquire);
  }
  while (!wanted(now)) {
    value.wait(now, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
}
}  // namespace

#if defined(__linux__)
// The calling thread's CPUs, put back at the end of the scope.
class Affinity {
 public:
  Affinity() { ok_ = sched_getaffinity(0, sizeof set_, &set_) == 0; }
  ~Affinity() {
    if (ok_) sched_setaffinity(0, sizeof set_, &set_);
  }
  std::vector<int> cpus() const {
    std::vector<int> out;
    for (int i = 0; ok_ && i < CPU_SETSIZE; i++)
      if (CPU_ISSET(i, &set_)) out.push_back(i);
    return out;
  }

 private:
  cpu_set_t set_;
  bool ok_;
};
#else
struct Affinity {
  std::vector<int> cpus() const { return {}; }
};
#endif

void Team::pin(int thread) const {
#if defined(__linux__)
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpus_[thread], &one);
  sched_setaffinity(0, sizeof one, &one);
#else
  (void)thread;
#endif
}

Team::Team(int size) : size_(size < 1 ? 1 : size), cpus_(Affinity().cpus()) {
  if (size_ == 1 || int(cpus_.size()) != size_) cpus_.clear();
  for (int t = 1; t < size_; t++) threads_.emplace_back([this, t] { work(t); });
}

Team::~Team() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : threads_) t.join();
}

void Team::run(const Body& body) {
  next_.store(0, std::memory_order_relaxed);
  phase_.store(0, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    generation_++;
  }
  wake_.notify_all();
  Member self(*this, 0);
  if (cpus_.empty()) {
    body(self);
  } else {
    Affinity restored;
    pin(0);
    body(self);
  }
  {
    std::lock_guard lock(mutex_);
    body_ = nullptr;  // who comes now comes too late
  }
  await(inside_, [](int n) { return n == 0; });
}

void Team::work(int thread) {
  if (!cpus_.empty()) pin(thread);
  uint64_t seen = 0;
  for (;;) {
    const Body* body;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || (body_ && generation_ != seen); });
      if (stop_) return;
      seen = generation_;
      body = body_;
      inside_.fetch_add(1, std::memory_order_relaxed);
    }
    Member self(*this, thread);
    (*body)(self);
    if (inside_.fetch_sub(1, std::memory_order_acq_rel) == 1) inside_.notify_all();
  }
}

int Team::claim(uint32_t phase, int n) {
  uint64_t at = next_.load(std::memory_order_acquire);
  while (at >> 32 == phase && uint32_t(at) < uint32_t(n))
    if (next_.compare_exchange_weak(at, at + 1, std::memory_order_acquire)) return int(uint32_t(at));
  return -1;
}

// The last to complete opens the next phase.
void Team::complete(uint32_t phase, int n) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) != n - 1) return;
  done_.store(0, std::memory_order_relaxed);
  next_.store(uint64_t(phase + 1) << 32, std::memory_order_release);
  phase_.store(phase + 1, std::memory_order_release);
  phase_.notify_all();
}

void Team::wait(uint32_t phase) {
  await(phase_, [phase](uint32_t now) { return now != phase; });
}

}  // namespace narrows
