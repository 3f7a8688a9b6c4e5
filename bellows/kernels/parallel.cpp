#include "bellows/kernels/parallel.h"

#include <ATen/Parallel.h>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

// at::parallel_for is a template that runs serially if the source is compiled without OpenMP, and code for OpenMP
// depends on the compiler. This entry point of libgomp, which Intel's and LLVM's libraries also provide, uses the same
// threads as libtorch, whichever compiler is used.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);

namespace bellows::kernels {

namespace {

/// The threads that share the work of this thread. Inside a chunk, there are none.
enum class Team { libtorch, fair, none };
thread_local Team team = Team::libtorch;

/// Sets this thread's team while it exists.
class TeamScope {
 public:
  explicit TeamScope(Team now) : before_(std::exchange(team, now)) {}
  ~TeamScope() { team = before_; }
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  Team before_;
};

struct Work {
  int64_t count;
  const std::function<void(int64_t)>& body;
  std::atomic<int64_t> next = 0;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error = nullptr;

  void take_chunks() {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
      next = count;
    }
  }
};

bool runs_alone(int64_t count) {
  return count <= 1 || team == Team::none || at::get_num_threads() <= 1 || at::in_parallel_region();
}

void run_fairly(int64_t count, const std::function<void(int64_t)>& body) {
  tbb::parallel_for(
      tbb::blocked_range<int64_t>(0, count, 1),
      [&](const tbb::blocked_range<int64_t>& range) {
        const TeamScope in_chunk(Team::none);
        for (int64_t i = range.begin(); i < range.end(); ++i) body(i);
      },
      tbb::simple_partitioner());
}

}  // namespace

void parallel_operators(int64_t count, const std::function<void(int64_t)>& body) {
  if (runs_alone(count)) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Work work{.count = count, .body = body};
  GOMP_parallel([](void* data) { static_cast<Work*>(data)->take_chunks(); }, &work, 0, 0);
  if (work.error) std::rethrow_exception(work.error);
}

void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body) {
  if (team == Team::fair && !runs_alone(count)) return run_fairly(count, body);
  parallel_operators(count, body);
}

void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, at::get_num_threads());
  parallel_chunks(ranges, [&](int64_t i) { body(count * i / ranges, count * (i + 1) / ranges); });
}

void with_fair_threads(const std::function<void()>& function) {
  const int threads = at::get_num_threads();
  if (team != Team::libtorch || threads <= 1 || at::in_parallel_region()) return function();
  // One arena per thread: a thread always finds its own place free, so `function` never moves to another thread.
  thread_local tbb::task_arena arena(threads, 1);
  if (arena.max_concurrency() != threads) {
    arena.terminate();
    arena.initialize(threads, 1);
  }
  arena.execute([&] {
    const TeamScope fair(Team::fair);
    function();
  });
}

}  // namespace bellows::kernels
