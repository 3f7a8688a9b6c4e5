#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/forward_state.h"
#include "bellows/recompute/selection.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute::detail {

/// One input of a region. It is saved in the same way as autograd saves tensors, so that surrounding taps receive it.
class SavedInput {
 public:
  explicit SavedInput(const at::Tensor& input);
  /// Throws: c10::ValueError if the input was modified in place after it was saved
  at::Tensor get(size_t number) const;
  /// Returns whether the input was modified in place after it was saved.
  bool modified() const { return version_now() != version_; }
  int64_t version() const { return version_; }
  int64_t version_now() const { return counter_.enabled() ? counter_.current_version() : 0; }

 private:
  /// The input, if it is a parameter or a view of a parameter. Taps recognize such tensors and do not process them.
  at::Tensor parameter_;
  torch::autograd::SavedVariable saved_;
  c10::VariableVersion counter_;
  int64_t version_ = 0;
};

/// Metadata of a saved tensor. The region stores only the metadata and not the values.
struct TensorFacts {
  TensorFacts(const at::Tensor& tensor, bool with_values);
  bool same_metadata(const TensorFacts& other) const;
  std::string to_string() const;

  c10::SmallVector<int64_t, 5> sizes;
  c10::ScalarType dtype;
  c10::Device device;
  uint64_t values = 0;  ///< hash of the bytes
};

/// Represents one tensor in the autograd graph whose values the region does not keep.
class Placeholder final : public tap::PackedTensor {
 public:
  explicit Placeholder(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  at::Tensor unpack() override;

 private:
  friend class Region;
  friend class SecondRun;
  std::shared_ptr<Region> region_;
  at::Tensor value_;  ///< set by the second run; released together with the node, or when the backward pass ends
  int64_t version_ = 0;
};

/// One call of a checkpointed function. It contains the inputs, the state on which the function depends, and one
/// placeholder for each tensor that the function saved. The placeholders own the region. The region has only weak
/// references to them, so it is destroyed together with the graph.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options);
  std::shared_ptr<tap::PackedTensor> save(const at::Tensor& tensor);
  /// Throws: c10::ValueError if the function modified an input in place
  void finish();
  at::Tensor value_of(Placeholder& placeholder);
  /// Returns the selection of operator outputs to keep, or null if there is neither a policy nor a budget.
  Selection* selection() { return selection_.get(); }

 private:
  friend class SecondRun;
  struct Place {
    std::weak_ptr<Placeholder> holder;
    TensorFacts facts;
    uint64_t random_position;
  };

  std::vector<at::Tensor> inputs_again() const;
  void run_again() BELLOWS_REQUIRES(mutex_);
  std::exception_ptr second_run(const std::vector<at::Tensor>& inputs) BELLOWS_REQUIRES(mutex_);
  /// Excluded from the thread-safety analysis, because only the constructor calls it.
  void choose_by(const CheckpointOptions& options,
                 const std::vector<at::Tensor>& inputs) BELLOWS_NO_THREAD_SAFETY_ANALYSIS;
  void note_versions() const BELLOWS_REQUIRES(mutex_);
  void drop_values();

  const CheckpointOptions options_;
  Rerun rerun_;
  std::vector<SavedInput> inputs_;
  std::vector<size_t> input_of_;  ///< for each tensor argument of the call, its index in inputs_
  ForwardState state_;
  std::unique_ptr<Selection> selection_;
  RecursiveMutex mutex_;
  std::vector<Place> places_;  ///< not guarded, because it no longer changes when second runs read it
  /// Storages of the inputs and of saved tensors. The weak references prevent their addresses from being reused.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_
      BELLOWS_GUARDED_BY(mutex_);
  int64_t activation_bytes_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool finished_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool running_ BELLOWS_GUARDED_BY(mutex_) = false;
};

}  // namespace bellows::recompute::detail
