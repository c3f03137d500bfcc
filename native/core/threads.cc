#include "narrows/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
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

Team::Team(int size) : size_(size < 1 ? 1 : size) {
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
  body(0);
  barrier();
}

void Team::work(int thread) {
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
