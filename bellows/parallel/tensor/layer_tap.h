#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/parallel/tensor/divided_dropout.h"
#include "bellows/parallel/tensor/tensor_plan.h"
#include "bellows/tap/argument_tap.h"
#include "bellows/tap/op_check.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::parallel {

/// Adds the exchanges of tensor parallelism to the layers of a model. It recognizes the layers by the memory of their
/// weights, which may be a part of a storage.
class LayerTap final : public tap::ArgumentTap, public tap::OpCheck {
 public:
  LayerTap(comm::Group group, std::vector<TensorCut> cuts, std::optional<at::Generator> generator);

  bool compute(const tap::OpRef& op, tap::Stack& stack) override;
  void call(const tap::OpRef& /*op*/, std::span<c10::IValue> /*arguments*/) override {}
  /// Throws: c10::Error if an operator that does not support divided weights reads one
  void check(const tap::OpRef& op, tap::Stack& stack) override;

  /// Forgets the tensors of the last forward pass, and finds the layers whose parameters were moved, for example by
  /// zero_optimizer(). Layers whose parameters pipeline() has freed are removed. Call it before and after each pass.
  void reset();
  /// Throws: c10::Error if no supported operator has used one of the divided weights so far
  void check_all_used() const;
  /// Whether an output layer has computed divided logits.
  bool has_divided_logits() const { return logits_ != nullptr; }

  /// While set, another client draws the masks of dropout. Returns the previous value.
  bool set_masks_left(bool on) { return std::exchange(masks_left_, on); }
  /// This rank's slice of a tensor that dropout or attention gets.
  RandomSlice random_slice(const at::Tensor& x) const;

  /// Between the two calls, tensors outside of the divided layers contain this rank's slice of the sequence (dim 1).
  void set_sequence(bool on) { sequence_ = on; }
  bool sequence() const { return sequence_; }

 private:
  struct Layer {
    TensorCut cut;
    bool used = false;
    int64_t begin = 0, end = 0;  ///< elements of the storage that the parameter has
  };
  struct Copied {
    at::Tensor input, result;
    int64_t version = 0;
    std::shared_ptr<tap::SavedTensorTap> slices = nullptr;  ///< keeps slices of the result for backward
  };

  Layer* layer_of(const c10::IValue& weight);
  void add(Layer layer);
  bool is_current() const;
  Copied column_input(const at::Tensor& x);
  at::Tensor row_input(const at::Tensor& x, const at::Tensor& weight, const Layer& layer) const;
  at::Tensor row_output(const at::Tensor& partial, const at::Tensor& bias) const;
  at::Tensor divided_linear(Layer& layer, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
  at::Tensor divided_embedding(const Layer& layer, std::span<const c10::IValue> arguments);
  bool linear(const tap::OpRef& op, tap::Stack& stack);
  bool embedding(const tap::OpRef& op, tap::Stack& stack);
  bool dropout(const tap::OpRef& op, tap::Stack& stack);
  bool attention(const tap::OpRef& op, tap::Stack& stack);
  bool layer_norm(const tap::OpRef& op, tap::Stack& stack) const;
  bool cross_entropy(const tap::OpRef& op, tap::Stack& stack) const;
  void check_generators();
  /// Throws: c10::Error if the second run of a checkpointed function would draw new masks
  void check_not_repeated() const;

  const comm::Group group_;
  const std::optional<at::Generator> generator_;
  std::unordered_map<const c10::StorageImpl*, std::vector<Layer>> layers_;
  /// The latest inputs of column layers. Layers with the same input share one exchange in backward. During backward,
  /// the second runs of checkpointed functions keep an input only until the next row layer.
  std::array<Copied, 4> copied_;
  size_t next_copied_ = 0;
  bool inside_ = false;  ///< after a column layer and before a row layer, activations are divided
  bool sequence_ = false, masks_left_ = false;
  bool computing_ = false;         ///< inside of compute(), whose operators may read divided weights
  const Layer* logits_ = nullptr;  ///< the layer that last computed divided logits
  bool generators_checked_ = false;
};

}  // namespace bellows::parallel
