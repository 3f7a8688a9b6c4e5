#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// The program that a competent user of libtorch writes today for the digits, with nothing from bellows in it.
namespace plain_libtorch {

struct Options {
  std::string data = "data/digits";  ///< folder of the shards: train-*.tar, test-*.tar
  int64_t image_size = 0;            ///< pixels on a side that the digits are scaled to; 0: 8, as they are
  int64_t batch = 64;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  uint64_t seed = 1;
};

/// Where the time of the steps so far went.
struct PhaseSeconds {
  double load = 0, forward = 0, backward = 0, optimizer = 0;
};

/// A training run that can be advanced step by step.
/// Threads: one owner.
class Training {
 public:
  explicit Training(const Options& options);
  ~Training();
  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;

  /// Runs `n` optimizer steps, across the ends of epochs, and returns the loss of the last one.
  double run_steps(int64_t n);
  /// Loss of the model on the first `batch` training samples in their order on disk, without training on them.
  double first_batch_loss();
  /// Share of the held-out digits that are classified correctly, 0 to 1.
  double evaluate();

  /// Parameters, then buffers, by torchvision's names: the model's own tensors, so that comparisons can set them.
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const;
  const PhaseSeconds& phase_seconds() const;
  int64_t step_count() const;       ///< optimizer steps so far
  int64_t steps_per_epoch() const;  ///< the last, smaller batch included
  int64_t train_size() const;
  int64_t test_size() const;
  int64_t batch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plain_libtorch
