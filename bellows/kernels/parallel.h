#pragma once

#include <cstdint>
#include <functional>

namespace bellows::kernels {

/// Calls `body(i)` once for each i in [0, count) on libtorch's intra-op threads. A thread takes the next i when it has
/// finished the previous one. Calls of different duration and busy cores therefore cost little time. The calling thread
/// makes all calls if it is in a parallel region or if there is only one thread.
/// Cost:    one parallel region (about 5 µs), and one atomic addition per call of `body`. Each call of `body` should
///          take at least a few µs
/// Threads: thread-safe. The first exception of `body` is rethrown
void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body);

/// Calls `body(begin, end)` for ranges that together cover [0, count). There is at most one range per thread. Ranges
/// have at least `grain` elements if `count` is large enough. Use this function instead of at::parallel_for, which runs
/// serially in code that is compiled without OpenMP, such as this library.
/// Cost, threads: like parallel_chunks()
void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace bellows::kernels
