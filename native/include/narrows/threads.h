// A team of threads that runs one function together. Threads spin only inside run() and park between runs. A team as large as the
// set of CPUs it may use gives each member its own for the length of a run: schedulers have been seen to leave two members on one
// CPU, where each spins out its slice while the other should work.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace narrows {

class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // Runs body(thread) on every member, the caller being thread 0; returns when all are done.
  void run(const std::function<void(int)>& body);

  // Inside run() only, by every member, in the same order.
  void barrier();
  // Hands out indices 0..n-1, one at a time, to whoever is free; body(i) must not depend on who runs it. Ends with a barrier.
  template <class Body>
  void for_each(int n, Body body) {
    for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) body(i);
    barrier();
  }

 private:
  void work(int thread);
  void pin(int thread) const;

  const int size_;
  std::vector<int> cpus_;  // one a member; empty: not pinned
  // A barrier counts arrivals; the last to arrive resets both counters and opens the next phase.
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
  alignas(64) std::atomic<int> next_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* body_ = nullptr;
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace narrows
