#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace bellows::tap {

/// Receives what a child of a torch::nn::Sequential returns, whatever its class. Sequential calls its children through
/// `AnyModule`, which is the only place where libtorch calls a module without knowing its class.
///
/// While the tap exists, the child's `AnyModule` holds an object that calls the child and then reports its result. Names,
/// parameters and results stay the same. `Sequential::at<T>()` and `ptr<T>()` throw c10::Error for this child.
/// Threads: create and destroy the tap while no thread runs the Sequential. `receive` is called on the thread that does
class SequentialTap {
 public:
  /// Called with the tensors of the result: one, or those of a pair or of the nested pairs of an LSTM.
  using Receive = std::function<void(const std::vector<at::Tensor>&)>;

  /// Params: sequential – a torch::nn::Sequential
  ///         child      – index of the child, from 0
  /// Throws: c10::ValueError if `sequential` is another module, or has fewer children
  SequentialTap(std::shared_ptr<torch::nn::Module> sequential, size_t child, Receive receive);
  ~SequentialTap();
  SequentialTap(const SequentialTap&) = delete;
  SequentialTap& operator=(const SequentialTap&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> sequential_;
  size_t child_;
  const void* reporting_ = nullptr;  ///< the object in the child's place
};

/// Returns the number of children of a torch::nn::Sequential, or -1 for another module.
int64_t children_of_sequential(const torch::nn::Module& module);

}  // namespace bellows::tap
