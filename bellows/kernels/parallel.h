#pragma once

#include <cstdint>
#include <functional>

namespace bellows::kernels {

/// Calls `body(i)` once for each i in [0, count) on several threads. A thread takes the next i when it has finished the
/// previous one, so that uneven work and busy cores cost little. The calling thread makes all calls if it is in a
/// parallel region or if there is only one thread. `body` must not call operators of libtorch, which would start
/// their own parallel regions.
/// Cost:    one parallel region (about 5 µs), and one atomic addition per call of `body`. Each call of `body` should
///          take at least a few µs
/// Threads: thread-safe. The calls run on libtorch's intra-op threads; inside with_work_stealing(), on those of oneTBB.
///          The first exception of `body` is rethrown
void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body);

/// Calls `body(begin, end)` for ranges that together cover [0, count). There is at most one range per thread. Ranges
/// have at least `grain` elements if `count` is large enough. Use this function instead of at::parallel_for, which runs
/// serially in code that is compiled without OpenMP, such as this library.
/// Cost, threads: like parallel_chunks()
void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

/// Like parallel_chunks(), but always on libtorch's intra-op threads, so that `body` may call operators of libtorch.
/// These then run on one thread.
void parallel_operators(int64_t count, const std::function<void(int64_t)>& body);

/// Calls `function` on this thread. Until it returns, parallel_chunks(), parallel_ranges() and oneDNN (if it was built
/// with oneTBB) use the work-stealing threads of oneTBB. The calling thread then waits only for parts of the work that
/// another thread has started. libtorch's OpenMP threads, in contrast, wait for each other at the end of each parallel
/// region, even for a thread whose core is used by another process.
/// The number of threads is at::get_num_threads(), or 1 in a parallel region. It determines the parts, so results do
/// not depend on the kind of threads.
/// Cost: about 1 µs
void with_work_stealing(const std::function<void()>& function);
/// Inside with_work_stealing(), lets operators of libtorch that this thread calls run on one thread while the guard exists.
/// Use it for operators that take a few µs: the OpenMP threads that a parallel operator wakes wait actively for more work
/// afterwards, and thereby slow down the threads of oneTBB. Elsewhere, the guard has no effect.
class SerialOperatorGuard {
 public:
  /// Params: serial – if false, the guard has no effect
  explicit SerialOperatorGuard(bool serial = true);
  ~SerialOperatorGuard();
  SerialOperatorGuard(const SerialOperatorGuard&) = delete;
  SerialOperatorGuard& operator=(const SerialOperatorGuard&) = delete;

 private:
  int threads_ = 0;  ///< the number of threads before; 0 if nothing was changed
};

/// Returns whether oneTBB can use several cores. It cannot if OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY binds the
/// main thread to one core, because its threads inherit this binding.
bool can_steal_work();

}  // namespace bellows::kernels
