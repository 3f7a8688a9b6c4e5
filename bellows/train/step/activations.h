#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/recompute/budget.h"
#include "bellows/recompute/compress.h"
#include "bellows/recompute/offload.h"

namespace bellows::train {

struct Recipe;

/// Reduces the activation memory of a training step according to the recipe: `recompute`, `activation_memory_budget` or
/// `activation_memory_budget_mb`, `activation_dtype` and `offload_folder`. If all are off, it does nothing.
/// Numerics: bit-identical with `activation_dtype: full` (tests/train/activations_test.cpp). With other dtypes,
///           rounding depends only on the recipe's seed, the rank, the step and the batch within it. So a resumed run
///           rounds like an uninterrupted one
/// Threads:  not thread-safe
class Activations {
 public:
  /// Applies the recipe to the model's blocks until the object is destroyed.
  /// Throws: c10::ValueError if `recompute: blocks` is set and the model does not define blocks. c10::Error if
  ///         `offload_folder` cannot be written
  Activations(const Recipe& recipe, const Model& model, int rank);
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  /// Guards the forward pass of one batch.
  class Forward {
   public:
    /// Params: step – from 0; batch – index within the step, from 0
    Forward(const Activations& activations, int64_t step, int64_t batch);

   private:
    std::optional<recompute::BudgetGuard> budget_;
    std::optional<recompute::OffloadGuard> offload_;  // outer guard, because it offloads the compressed tensors
    std::optional<recompute::CompressGuard> compress_;
  };

  /// "9 blocks computed again, half of …"; "" if everything is off.
  std::string describe() const;

 private:
  const Model model_;
  std::optional<recompute::ActivationBits> bits_;
  std::string folder_;
  int64_t reserve_bytes_ = 0;  ///< disk space to reserve
  uint64_t seed_;
  int64_t blocks_ = 0;
  /// The budget that blocks may keep; shared by all steps, so that it is measured once.
  std::optional<recompute::BudgetPlanner> keep_;
  std::string kept_;                ///< description of the budget
  std::vector<at::Tensor> frozen_;  ///< tensors of the model that autograd would save as activations
};

/// The reason why `recompute: blocks` does not fit this recipe's model; "" if it does. Creates the model without
/// changing the generators.
std::string recompute_obstacle(const Recipe& recipe);

}  // namespace bellows::train
