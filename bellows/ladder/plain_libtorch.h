#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// A training program for the digits dataset. It is written as an experienced libtorch user would write it, without any
/// code of Bellows.
namespace plain_libtorch {

struct Options {
  std::string data = "data/digits";  ///< folder with the files train-*.tar and test-*.tar
  /// Width and height to which the digits are scaled. 0 means the original size, which is 8.
  int64_t image_size = 0;
  int64_t batch = 64;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  uint64_t seed = 1;
};

/// Time of all steps so far, by phase. The time for the running loss and accuracy is not included.
struct PhaseSeconds {
  double load = 0, forward = 0, backward = 0, optimizer = 0;
};

/// A training run that the caller advances step by step.
/// Threads: not thread-safe
class Training {
 public:
  explicit Training(const Options& options);
  ~Training();
  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;

  /// Runs `n` optimizer steps, across epochs, and returns the loss of the last step.
  double run_steps(int64_t n);
  /// Returns the loss of the model on the first `batch` training samples in disk order, without training on them.
  double first_batch_loss();
  /// Returns the share of correctly classified held-out digits, in [0, 1].
  double evaluate();

  /// Returns the parameters, then the buffers, with torchvision's names. They are the model's own tensors, not copies,
  /// so a comparison can overwrite them, for example to give two programs the same weights.
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const;
  const PhaseSeconds& phase_seconds() const;
  int64_t step_count() const;       ///< number of optimizer steps so far
  int64_t steps_per_epoch() const;  ///< includes the last batch, which may be smaller
  int64_t train_size() const;
  int64_t test_size() const;
  int64_t batch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plain_libtorch
