#pragma once

#include <cstddef>
#include <span>

namespace bellows::bench {

/// A loop over arrays that does next to nothing but read and write. Bytes are counted as the program asks for them: an array
/// that is updated in place counts twice. What the processor reads besides, before it overwrites a line, does not count.
struct StreamKernel {
  const char* name;
  size_t reads;    ///< arrays that are only read
  size_t updates;  ///< arrays that are read and written in place
  size_t writes;   ///< arrays that are only written

  size_t arrays() const { return reads + updates + writes; }
  /// Of one pass over arrays of `length` floats each.
  double bytes_moved(size_t length) const {
    return static_cast<double>(sizeof(float) * length * (reads + 2 * updates + writes));
  }
};

/// All there are.
std::span<const StreamKernel> stream_kernels();

/// One pass over elements begin to end, both multiples of 16, of arrays that start at multiples of 64 bytes: those that are
/// read first, then those that are updated, then those that are written.
/// Returns: a value that depends on all that was read, so that no compiler leaves the reads out
float run_stream(const StreamKernel& kernel, float* const* arrays, size_t begin, size_t end);

}  // namespace bellows::bench
