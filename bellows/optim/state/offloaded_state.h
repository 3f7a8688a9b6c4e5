#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bellows/optim/state/state_file.h"
#include "bellows/optim/step_in_backward.h"

namespace bellows::optim {

/// Keeps the optimizer state of each parameter in a file between two updates of the parameter. Other code sees the same
/// state tensors, but their memory is mapped from the file. The tensors stay in the file after this object is
/// destroyed.
/// Threads: not thread-safe
class OffloadedState {
 public:
  /// Returns whether the state of a parameter goes to the file.
  using Chosen = std::function<bool(const at::Tensor& parameter)>;
  static bool is_trained(const at::Tensor& parameter) { return parameter.requires_grad(); }

  /// Moves existing state to the file.
  OffloadedState(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options,
                 const Chosen& chosen = is_trained);

  /// Call this function before a parameter's step. It prefetches the state of the next parameters.
  void before_step(const at::Tensor& parameter);
  /// Call this function after the step. It moves new state to the file and starts to write changed state back to the
  /// file.
  void after_step(const at::Tensor& parameter);

  /// Moves all state to the file. Call this function after you load state.
  void keep_all();

  OffloadedStateStats stats() const;
  void wait() { writer_->wait(); }

 private:
  /// The region of the file for one parameter. When the parameter's master weight or a field of its state first
  /// appears, a part of this region is assigned to it.
  struct Place {
    at::Tensor parameter;
    size_t group;
    FilePart part;
    std::vector<FilePart> fields = {};
    int64_t used = 0;
  };

  void lay_out(const Chosen& chosen);
  void keep(Place& place);
  at::Tensor in_file(Place& place, size_t field, const at::Tensor& tensor) const;
  void arrived(size_t index);
  void read_ahead(size_t position);

  torch::optim::Optimizer& optimizer_;
  const int64_t in_flight_bytes_;
  std::vector<Place> places_;
  std::unordered_map<const void*, size_t> index_of_;
  int64_t bytes_ = 0;
  std::shared_ptr<StateFile> file_;
  std::unique_ptr<StateWriter> writer_;
  // The order in which gradients arrived in the previous pass. The order is circular: the first gradient of the next
  // pass follows the last gradient of the current pass.
  std::vector<size_t> order_, position_;  ///< position_[i]: position of place i in order_
  std::vector<size_t> coming_;            ///< order of the current pass
  std::vector<bool> came_;
  size_t ahead_ = 0;         ///< number of positions after last_ that have been prefetched
  int64_t ahead_bytes_ = 0;  ///< size of the state at these positions
  size_t last_ = 0;          ///< position of the last gradient
};

}  // namespace bellows::optim
