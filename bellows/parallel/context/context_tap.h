#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "bellows/comm/group.h"
#include "bellows/parallel/context/context_attention.h"
#include "bellows/parallel/context/sequence_layout.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/tap/argument_tap.h"
#include "bellows/tap/op_check.h"

namespace bellows::parallel {

/// Computes attention and dropout of a model whose activations are this rank's part of the sequence.
class ContextTap final : public tap::ArgumentTap, public tap::OpCheck {
 public:
  /// Params: options – method, layout, generator and check_finite are used
  ///         tensor – has divided the layers of the model; empty if they are complete
  ContextTap(comm::Group group, const ContextAttentionOptions& options, std::optional<TensorParallel> tensor)
      : group_(std::move(group)),
        options_(options),
        layout_{.ranks = group_.size(), .zigzag = options.zigzag},
        tensor_(std::move(tensor)) {}

  bool compute(const tap::OpRef& op, tap::Stack& stack) override;
  /// Notices that the next forward pass has begun.
  void call(const tap::OpRef& op, std::span<c10::IValue> arguments) override;
  /// Throws: c10::Error if a fused operator would draw a dropout mask for a part of the sequence
  void check(const tap::OpRef& op, tap::Stack& stack) override;

  const SequenceLayout& layout() const { return layout_; }
  const ContextAttentionOptions& options() const { return options_; }

  /// Number of ranks of a tensor axis that divide this rank's part of each sequence again (sequence parallelism).
  int64_t sequence_parts() const { return tensor_ && tensor_->divides_sequences() ? tensor_->group().size() : 1; }

  /// From now on, only tensors within an Inside guard are divided. Before, all tensors are.
  void divide_blocks_only() { blocks_only_ = true; }
  /// After the last block of a model, its output stays divided, until the next forward pass.
  void set_output_divided(bool on) { output_divided_ = on; }

  /// While this guard exists, dim 1 of activations is this rank's part of the sequence.
  class Inside {
   public:
    /// Params: tokens – of this rank. If not set, only tensors that are divided anyway are
    explicit Inside(ContextTap& tap, std::optional<int64_t> tokens = {}) : tap_(tap), before_(tap.tokens_) {
      tap_.tokens_ = tokens.value_or(before_);
      if (tap_.tensor_) masks_left_ = tap_.tensor_->set_masks_left(tap_.divided() && tap_.group_.size() > 1);
    }
    ~Inside() {
      tap_.tokens_ = before_;
      if (tap_.tensor_) tap_.tensor_->set_masks_left(masks_left_);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    ContextTap& tap_;
    int64_t before_;
    bool masks_left_ = false;
  };

 private:
  bool divided() const { return tokens_ > 0 || !blocks_only_; }
  bool attention(const tap::OpRef& op, tap::Stack& stack);
  bool dropout(const tap::OpRef& op, tap::Stack& stack);
  at::Tensor divided_dropout(const at::Tensor& x, double p);
  void check_generators();
  void check_not_repeated() const;
  void check_output(const char* name) const;

  const comm::Group group_;
  const ContextAttentionOptions options_;
  const SequenceLayout layout_;
  const std::optional<TensorParallel> tensor_;
  bool blocks_only_ = false, output_divided_ = false, generators_checked_ = false;
  int64_t tokens_ = 0;  ///< tokens of this rank within a block; 0: outside of blocks
};

}  // namespace bellows::parallel
