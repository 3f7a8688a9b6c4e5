#include "bellows/kernels/parallel.h"

#include <ATen/Parallel.h>
#include <immintrin.h>
#include <tbb/blocked_range.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

// at::parallel_for is a template that runs serially if the source is compiled without OpenMP, and code for OpenMP
// depends on the compiler. This entry point of libgomp, which Intel's and LLVM's libraries also provide, uses the same
// threads as libtorch, whichever compiler is used.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
// The number of OpenMP threads of the parallel regions that this thread starts.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int threads);
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace bellows::kernels {

namespace {

/// The threads that share the work of this thread. `none`: it already runs a chunk, so nested calls run serially.
enum class Team { libtorch, stealing, none };
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

/// What this thread did so far happens before what a thread does that calls see_all() with the same address. libgomp's barriers order
/// threads, but ThreadSanitizer does not see them, because libgomp is not instrumented.
void show_all([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(address);
#endif
}
void see_all([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(address);
#endif
}

struct Work {
  int64_t count;
  const std::function<void(int64_t)>& body;
  std::atomic<int64_t> next = 0;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error = nullptr;

  void take_chunks() {
    see_all(this);
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
      next = count;
    }
    show_all(this);
  }
};

/// A thread's oneTBB arena: the calling thread always finds its own place free, so its function never moves to another
/// thread.
class Arena {
 public:
  /// An arena stores the rounding and flushing modes of its creator, so it is made anew when these change.
  tbb::task_arena& of(int threads) {
    const unsigned modes = _mm_getcsr() & ~unsigned{_MM_EXCEPT_MASK};
    if (arena_ && threads == threads_ && modes == modes_) return *arena_;
    arena_.reset();
    threads_ = 0;  // until the new one is ready
    arena_.emplace(threads, 1);
    arena_->initialize();
    threads_ = threads;
    modes_ = modes;
    return *arena_;
  }

 private:
  std::optional<tbb::task_arena> arena_;
  int threads_ = 0;
  unsigned modes_ = 0;
};

bool runs_alone(int64_t count) {
  return count <= 1 || team == Team::none || at::get_num_threads() <= 1 || at::in_parallel_region();
}

void run_stealing(int64_t count, const std::function<void(int64_t)>& body) {
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
  show_all(&work);
  GOMP_parallel([](void* data) { static_cast<Work*>(data)->take_chunks(); }, &work, 0, 0);
  see_all(&work);
  if (work.error) std::rethrow_exception(work.error);
}

void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body) {
  if (team == Team::stealing && !runs_alone(count)) return run_stealing(count, body);
  parallel_operators(count, body);
}

void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, at::get_num_threads());
  parallel_chunks(ranges, [&](int64_t i) { body(count * i / ranges, count * (i + 1) / ranges); });
}

bool can_steal_work() {
  return tbb::info::default_concurrency() > 1 || at::get_num_threads() <= 1 || std::thread::hardware_concurrency() <= 1;
}

SerialOperatorGuard::SerialOperatorGuard(bool serial) {
  if (!serial || team != Team::stealing) return;
  threads_ = omp_get_max_threads();
  omp_set_num_threads(1);
}

SerialOperatorGuard::~SerialOperatorGuard() {
  if (threads_ > 0) omp_set_num_threads(threads_);
}

void with_work_stealing(const std::function<void()>& function) {
  if (team != Team::libtorch) return function();
  const bool alone = at::in_parallel_region();
  thread_local std::array<Arena, 2> arenas;
  const int threads = alone ? 1 : std::max(1, at::get_num_threads());
  // Also with one thread: outside an arena, oneDNN would use all cores.
  arenas[alone ? 1 : 0].of(threads).execute([&] {
    const TeamScope scope(alone ? Team::none : Team::stealing);
    function();
  });
}

}  // namespace bellows::kernels
