#pragma once

#include <cstdint>
#include <functional>

namespace bellows::kernels {

/// Calls `body(i)` once for each i in [0, count), on libtorch's intra-op threads. Each thread takes the next i when it
/// is done with the last, so uneven work and a busy core cost little. Within a parallel region, or with one thread, all
/// calls are made by the caller.
/// Cost:     one parallel region, about 5 µs, and one atomic addition a call: make `body` at least some µs long
/// Threads:  safe from all threads; the first exception of `body` is rethrown
void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body);

/// Calls `body(begin, end)` for ranges that together are [0, count), at most one a thread, none shorter than `grain` but where count is.
/// What at::parallel_for is where OpenMP is turned on in the compiler; here that one runs serially.
/// Cost, threads: as parallel_chunks()
void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace bellows::kernels
