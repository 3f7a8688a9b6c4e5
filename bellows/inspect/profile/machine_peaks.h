#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>

namespace bellows::inspect {

/// The highest rates that this machine reaches in simple measurements, with all threads of libtorch together.
struct MachinePeaks {
  double fp32_flops = 0;        ///< floating-point operations per second of a matmul in fp32
  double bf16_flops = 0;        ///< the same in bf16; 0 if not measured
  double bytes_per_second = 0;  ///< of an addition of arrays that are larger than the caches
  double call_s = 0;            ///< seconds of an operator call whose work is negligible

  /// Returns the peak for operators of this dtype. The peak of fp64 is half of that of fp32.
  double flops(c10::ScalarType dtype) const;
};

/// Measures the peaks of the processor.
/// Cost:    about one second and 400 MB
/// Threads: call it while nothing else runs
MachinePeaks measure_peaks();

// Parts of measure_peaks().

/// Returns the median seconds of `repeats` calls, after `warm_up` calls without timing.
double median_call_seconds(const std::function<void()>& call, int64_t repeats = 15, int64_t warm_up = 3);
/// Returns the floating-point operations per second of a matmul of `size` × `size`.
double measure_matmul_flops(c10::ScalarType dtype, int64_t size = 1024);
/// Returns the bytes per second that an addition of arrays of 128 MiB reads and writes.
double measure_memory_bandwidth();

}  // namespace bellows::inspect
