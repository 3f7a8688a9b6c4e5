#pragma once

#include <cstddef>
#include <span>

namespace bellows::bench {

/// A loop over arrays that only reads and writes memory, with almost no computation. Bytes are counted as the program requests them:
/// an array that is updated in place counts twice. If the processor reads a cache line before it overwrites the line, this
/// read does not count.
struct StreamKernel {
  const char* name;
  size_t reads;    ///< arrays that are only read
  size_t updates;  ///< arrays that are read and written in place
  size_t writes;   ///< arrays that are only written

  size_t arrays() const { return reads + updates + writes; }
  /// Returns the bytes of one pass over arrays of `length` floats each.
  double bytes_moved(size_t length) const {
    return static_cast<double>(sizeof(float) * length * (reads + 2 * updates + writes));
  }
};

/// Returns all loops.
std::span<const StreamKernel> stream_kernels();

/// Runs one pass over the elements from `begin` to `end`, both multiples of 16. The arrays start at multiples of 64 bytes. Their order is:
/// arrays that are read, then arrays that are updated, then arrays that are written.
/// Returns: a value that depends on all elements that were read, so that the compiler cannot remove the reads
float run_stream(const StreamKernel& kernel, float* const* arrays, size_t begin, size_t end);

}  // namespace bellows::bench
