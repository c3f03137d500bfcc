// A team of threads that runs one function together. Threads spin only inside run() and park between runs. A team as large as the
// set of CPUs it may use gives each member its own for the length of a run: schedulers have been seen to leave two members on one
// CPU, where each spins out its slice while the other should work.
//
// A phase ends when its work is done, not when every member has come: one whose CPU is taken by another process holds up no more
// than the piece it has in hand, and finds its way through the phases that were done without it.
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
  // One thread's part in a run.
  class Member {
   public:
    const int thread;

    // Hands out indices 0..n-1, one at a time, to whoever is free; body(i) must not depend on who runs it. Returns when all are done.
    // Every member calls it in the same order with the same n; what lies between two calls must not write what others read.
    template <class Body>
    void for_each(int n, Body body) {
      if (n <= 0) return;
      for (int i; (i = team_.claim(phase_, n)) >= 0;) {
        body(i);
        team_.complete(phase_, n);
      }
      team_.wait(phase_++);
    }

   private:
    friend class Team;
    Member(Team& team, int thread) : thread(thread), team_(team) {}
    Team& team_;
    uint32_t phase_ = 0;
  };
  using Body = std::function<void(Member&)>;

  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // Runs body on the caller, thread 0, and on the members that come in time; returns when nobody is in it.
  void run(const Body& body);

 private:
  int claim(uint32_t phase, int n);  // an index of the phase, or -1: all are taken
  void complete(uint32_t phase, int n);
  void wait(uint32_t phase);
  void work(int thread);
  void pin(int thread) const;

  const int size_;
  std::vector<int> cpus_;                      // one a member; empty: not pinned
  alignas(64) std::atomic<uint64_t> next_{0};  // the phase, and in the lower half the index that is handed out next
  alignas(64) std::atomic<int> done_{0};       // indices of the phase
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> inside_{0};  // members in the body, but the caller
  std::mutex mutex_;
  std::condition_variable wake_;
  const Body* body_ = nullptr;  // null between runs
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace narrows
