#pragma once

#include <memory>
#include <optional>

#include "bellows/comm/group.h"
#include "bellows/ladder/ladder.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Returns `recipe` with the settings of speed and memory techniques turned off, and without `run_folder`. The ladder
/// starts with this recipe. `ema_decay`, `lr_schedule`, `gradient_accumulation_steps`, `optimizer` and `batch_size` do
/// not change.
Recipe without_techniques(Recipe recipe);

/// Returns `recipe` with the full batch size and image size from the first step on, and without output files.
Recipe at_full_size(Recipe recipe);

/// Creates a run of a recipe on Bellows' step engine. Its peak memory is measured on the recipe's device, relative to
/// the memory that this process used when the job was created.
/// Params: ranks – the ranks that train together; all of them call this function. Empty: only this process
/// Throws: like make_job(); c10::ValueError if there is no held-out data, or if the recipe's loss has no accuracy
std::unique_ptr<LadderJob> make_ladder_job(Recipe recipe, uint64_t seed,
                                           const std::optional<comm::Group>& ranks = std::nullopt);

/// Returns the bytes that this rank has sent to the other ranks of the group, as a ring sends them. The sum includes the
/// exchanges of training, evaluation and checks.
/// Numerics: comm::traffic() counts the tensors; each collective's `Cost:` line has its factor (comm/collectives.h)
int64_t sent_by_ring(const comm::Group& group);

/// Implements LadderJob::take_peak_bytes(). Returns the peak of live bytes of the CPU allocator in this process since
/// the previous call.
int64_t take_cpu_peak_bytes();

}  // namespace bellows::train
