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

/// What a training loop does so that a step holds less of what autograd saves for backward: the recipe's `recompute`,
/// `recompute_keep` or `recompute_keep_mb`, `activations` and `offload_folder`. With all of them off it does nothing.
/// Numerics: bit for bit without `activations` (tests/train/activations_test.cpp). How those are rounded depends on the
///           recipe's seed, the rank, the step and the batch within it, and on nothing before: a resumed run rounds as
///           one that was never stopped
/// Threads:  one owner
class Activations {
 public:
  /// From now on the model's blocks run as the recipe says, until this is destroyed.
  /// Throws: c10::ValueError – `recompute: blocks` and a model that knows no blocks; c10::Error – `offload_folder` cannot
  ///         be written to
  Activations(const Recipe& recipe, const Model& model, int rank);
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  /// Around the forward pass of one batch.
  class Forward {
   public:
    /// Params: step – from 0; batch – of the step, from 0
    Forward(const Activations& activations, int64_t step, int64_t batch);

   private:
    std::optional<recompute::budget> budget_;
    std::optional<recompute::offload> offload_;  // the outer guard: it gets the codes
    std::optional<recompute::compress> compress_;
  };

  /// "9 blocks computed again, half of …"; "" when all is off.
  std::string describe() const;

 private:
  const Model model_;
  std::optional<recompute::ActivationBits> bits_;
  std::string folder_;
  int64_t reserve_bytes_ = 0;  ///< of its disk
  uint64_t seed_;
  int64_t blocks_ = 0;
  /// Of what the blocks keep all the same: one for all steps, so that they are measured once.
  std::optional<recompute::BudgetPlanner> keep_;
  std::string kept_;                ///< the same in words
  std::vector<at::Tensor> frozen_;  ///< the model's tensors that autograd takes for activations
};

/// Why `recompute: blocks` is not for this recipe's model; "" – it is. Makes the model; the generators stay where they are.
std::string recompute_obstacle(const Recipe& recipe);

}  // namespace bellows::train
