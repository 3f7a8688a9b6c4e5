#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "bellows/tap/allocator.h"
#include "bellows/tap/saved_tensor_tap.h"

/// What a function takes of memory.
namespace bellows::nn {

/// The most bytes that tensors took at once while `action` ran, over those that were there before.
inline int64_t peak_bytes(const std::function<void()>& action) {
  tap::install_cpu_allocator();
  action();  // what is made once, such as threads' scratch memory
  tap::reset_cpu_allocation_peak();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  action();
  return tap::cpu_allocation_counters().peak_bytes - before;
}

/// Bytes that autograd keeps for backward of what `forward` computes; parameters do not count.
inline int64_t kept_bytes(const std::function<at::Tensor()>& forward) {
  class Counter : public tap::SavedTensorTap {
   public:
    std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
      bytes += static_cast<int64_t>(tensor.nbytes());
      return nullptr;
    }
    int64_t bytes = 0;
  };
  const auto counter = std::make_shared<Counter>();
  const tap::SavedTensorGuard guard(counter);
  const at::Tensor y = forward();
  return counter->bytes;
}

}  // namespace bellows::nn
