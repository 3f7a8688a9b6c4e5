#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/forward_state.h"
#include "bellows/recompute/selection.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute::detail {

/// One input of a region. It is saved the same way as autograd saves tensors, so that taps around the region receive
/// it.
class SavedInput {
 public:
  explicit SavedInput(const at::Tensor& input);
  /// Throws: c10::ValueError if the input was modified in place since
  at::Tensor get(size_t number) const;
  /// True if the input was modified in place.
  bool modified() const { return version_now() != version_; }
  int64_t version() const { return version_; }
  int64_t version_now() const { return counter_.enabled() ? counter_.current_version() : 0; }

 private:
  /// A parameter or a view of one: taps detect them by the variable itself and leave them alone
  at::Tensor parameter_;
  torch::autograd::SavedVariable saved_;
  c10::VariableVersion counter_;
  int64_t version_ = 0;
};

/// Facts about a saved tensor that are kept instead of its values.
struct TensorFacts {
  TensorFacts(const at::Tensor& tensor, bool with_values);
  bool same_metadata(const TensorFacts& other) const;
  std::string to_string() const;

  c10::SmallVector<int64_t, 5> sizes;
  c10::ScalarType dtype;
  c10::Device device;
  uint64_t values = 0;  ///< hash of the bytes
};

/// Represents in the graph one tensor that the region does not keep.
class Placeholder final : public tap::PackedTensor {
 public:
  explicit Placeholder(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  at::Tensor unpack() override;

 private:
  friend class Region;
  friend class SecondRun;
  std::shared_ptr<Region> region_;
  at::Tensor value_;  ///< set by the second run; released with the node or when the backward pass ends
  int64_t version_ = 0;
};

/// One call of a checkpointed function: its inputs, the state it ran under, and a place for each tensor that it saved.
/// Placeholders own the region. The region holds only weak references to them, so that it is destroyed with the graph.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options);
  std::shared_ptr<tap::PackedTensor> save(const at::Tensor& tensor);
  /// Throws: c10::ValueError if an input was modified in place
  void finish();
  at::Tensor value_of(Placeholder& placeholder);
  /// Returns: the selection of operator outputs to keep, or null if there is no policy or budget
  Selection* selection() { return selection_.get(); }

 private:
  friend class SecondRun;
  struct Place {
    std::weak_ptr<Placeholder> holder;
    TensorFacts facts;
    uint64_t random_position;
  };

  std::vector<at::Tensor> inputs_again() const;
  void run_again();
  std::exception_ptr second_run(const std::vector<at::Tensor>& inputs);
  void choose_by(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs);
  void note_versions() const;
  void drop_values();

  const CheckpointOptions options_;
  Rerun rerun_;
  std::vector<SavedInput> inputs_;
  std::vector<size_t> input_of_;  ///< for each tensor of the call, its index in inputs_
  ForwardState state_;
  std::unique_ptr<Selection> selection_;
  std::recursive_mutex mutex_;
  std::vector<Place> places_;
  /// Storages of the inputs and of saved tensors. The references keep their addresses from being reused.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  int64_t activation_bytes_ = 0;
  bool finished_ = false, running_ = false;
};

}  // namespace bellows::recompute::detail
