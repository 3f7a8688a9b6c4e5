#pragma once

#include <cstdint>
#include <functional>

namespace bellows::kernels {

/// Calls `body(i)` once for each i in [0, count) on several threads. A thread takes the next i when it has finished the
/// previous one, so that uneven work and busy cores cost little. The calling thread makes all calls if it is in a
/// parallel region or if there is only one thread. `body` must not call operators of libtorch, which would start
/// parallel regions of their own.
/// Cost:    one parallel region (about 5 µs), and one atomic addition per call of `body`. Each call of `body` should
///          take at least a few µs
/// Threads: thread-safe. The calls run on libtorch's intra-op threads; inside with_fair_threads(), on those of oneTBB.
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
/// with oneTBB) use threads of oneTBB. The calling thread then never waits for a thread that has not started its part
/// of the work, so a core that another process uses costs only its share of the time. libtorch's OpenMP threads, in
/// contrast, wait for each other at the end of each parallel region. Results do not depend on the kind of threads.
/// The number of threads is at::get_num_threads().
/// Cost: about 1 µs
void with_fair_threads(const std::function<void()>& function);

}  // namespace bellows::kernels
