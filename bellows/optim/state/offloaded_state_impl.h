#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "bellows/optim/state/state_file.h"
#include "bellows/optim/step_in_backward.h"

namespace bellows::optim {

/// Keeps an optimizer's state in a file between the steps of single parameters. The state's tensors stay what they are for
/// everybody else; their memory is the file's. It stays there when this object ends, as long as somebody has the tensors.
/// Threads: one at a time
class OffloadedState {
 public:
  /// Takes state that is there already to the file.
  OffloadedState(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options);

  /// To be called before a parameter's step: has the state read of those that will follow.
  void before_step(const at::Tensor& parameter);
  /// To be called behind it: state that is new goes to the file, what has changed is written.
  void after_step(const at::Tensor& parameter);

  OffloadedStateStats stats() const;
  void wait() { writer_->wait(); }

 private:
  /// A parameter's place in the file, with a part for its master weight and for each field of its state, from when it first
  /// came.
  struct Place {
    at::Tensor parameter;
    size_t group;
    FilePart part;
    std::vector<FilePart> fields = {};
    int64_t used = 0;
  };

  void lay_out();
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
  // The order in which gradients came in the pass before, as a ring: behind its end the next pass begins.
  std::vector<size_t> order_, position_;  ///< position_: of each place in order_
  std::vector<size_t> coming_;            ///< in the pass that goes on
  std::vector<bool> came_;
  size_t ahead_ = 0;         ///< how many positions behind the last one have been asked for
  int64_t ahead_bytes_ = 0;  ///< and their bytes
  size_t last_ = 0;          ///< position of the last one
};

}  // namespace bellows::optim
