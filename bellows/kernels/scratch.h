#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace bellows::kernels {

/// Returns this thread's buffer of at least `count` floats, 64-byte aligned. Its content is undefined. The buffer stays
/// allocated until the thread ends, and the next call on the same thread may return the same memory.
/// Throws: std::bad_alloc
inline float* thread_scratch(size_t count) {
  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };
  thread_local std::unique_ptr<float, Free> buffer;
  thread_local size_t size = 0;
  if (count > size) {
    buffer.reset();
    size = 0;
    buffer.reset(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t(64))));
    size = count;
  }
  return buffer.get();
}

}  // namespace bellows::kernels
