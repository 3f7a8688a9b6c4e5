#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// Checks the inputs of a call. If the dtype of an input is not known, only its device is checked.
/// Params: model – the file, for error messages
/// Throws: c10::ValueError if the number, dtypes, sizes, devices or layouts of the inputs differ from `expected`
void check_inputs(const std::string& model, std::span<const TensorInfo> expected, std::span<const at::Tensor> inputs);

/// Throws: c10::ValueError if the number of threads is negative, or if the back end does not support a provider or autocast
void check_options(const std::string& backend, const LoadOptions& options, bool autocast = false,
                   bool providers = false);

/// Returns the number of threads of a call: that of the options, or of libtorch.
int64_t thread_count(const LoadOptions& options);

/// While the guard exists, operators that this thread calls run on `threads` threads.
class ThreadGuard {
 public:
  explicit ThreadGuard(int64_t threads);
  ~ThreadGuard();
  ThreadGuard(const ThreadGuard&) = delete;
  ThreadGuard& operator=(const ThreadGuard&) = delete;

 private:
  int before_;
  bool changed_;
};

/// Returns tensors over the same memory that code outside of inference mode can write.
std::vector<at::Tensor> ordinary_tensors(const std::vector<at::Tensor>& tensors);

}  // namespace bellows::runtime
