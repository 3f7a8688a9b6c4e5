#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/models/blocks.h"
#include "bellows/recompute/budget.h"
#include "bellows/recompute/compress.h"
#include "bellows/recompute/offload.h"

namespace bellows::train {

struct Recipe;

/// Reduces the activation memory of a training step. The recipe selects the methods with `recompute`,
/// `activation_memory_budget` or `activation_memory_budget_mb`, `activation_dtype` and `offload_folder`. If all of them
/// are off, this class does nothing.
/// Numerics: bit-identical with `activation_dtype: full` (tests/train/activations_test.cpp). With other dtypes,
///           rounding depends only on the recipe's seed, the rank, the step and the batch within the step. A resumed
///           run therefore rounds like an uninterrupted run
/// Threads:  not thread-safe
class Activations {
 public:
  /// Applies the recipe to the model's blocks until this object is destroyed.
  /// Params: divide – returns a function that calls blocks by its argument, for ranks that divide sequences. If null,
  ///                  the blocks are not divided
  /// Throws: c10::ValueError if `recompute: blocks` is set but the model does not define blocks. c10::Error if
  ///         `offload_folder` cannot be written
  Activations(const Recipe& recipe, const Model& model, int rank,
              const std::function<models::RunBlock(models::RunBlock)>& divide = nullptr);
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  /// Applies the recipe to the forward pass of one batch while the object exists.
  class Forward {
   public:
    /// Params: step  – number of the step, from 0
    ///         batch – number of the batch within the step, from 0
    Forward(const Activations& activations, int64_t step, int64_t batch);

   private:
    std::optional<recompute::BudgetGuard> budget_;
    std::optional<recompute::OffloadGuard> offload_;  // outer guard, because it offloads the compressed tensors
    std::optional<recompute::CompressGuard> compress_;
  };

  /// Describes the settings, such as "9 blocks computed again, half of …". The description is empty if everything is
  /// off.
  std::string describe() const;

 private:
  const Model model_;
  std::optional<recompute::ActivationBits> bits_;
  std::string folder_;
  int64_t reserve_bytes_ = 0;  ///< disk space to reserve
  uint64_t seed_;
  int64_t blocks_ = 0;
  /// The budget of activations that blocks may keep. All steps share it, so that it is measured only once.
  std::optional<recompute::BudgetPlanner> keep_;
  std::string kept_;                ///< description of the budget
  std::vector<at::Tensor> frozen_;  ///< tensors of the model that autograd would save as activations
};

/// Returns the reason why `recompute: blocks` does not fit this recipe's model, or "" if it fits. The function creates
/// the model but leaves the generators unchanged.
std::string recompute_obstacle(const Recipe& recipe);

}  // namespace bellows::train
