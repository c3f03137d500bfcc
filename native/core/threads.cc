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

void Team::run(const std::function<void(int)>& body) {
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    generation_++;
  }
  wake_.notify_all();
  if (cpus_.empty()) {
    body(0);
    barrier();
  } else {
    Affinity restored;
    pin(0);
    body(0);
    barrier();
  }
}

void Team::work(int thread) {
  if (!cpus_.empty()) pin(thread);
  uint64_t seen = 0;
  for (;;) {
    const std::function<void(int)>* body;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      body = body_;
    }
    (*body)(thread);
    barrier();
  }
}

void Team::barrier() {
  int phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
    return;
  }
  for (int spin = 0; spin < kSpins; spin++) {
    if (phase_.load(std::memory_order_acquire) != phase) return;
    pause();
  }
  while (phase_.load(std::memory_order_acquire) == phase) phase_.wait(phase, std::memory_order_acquire);
}

}  // namespace narrows
