#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// The number of samples in one optimizer step, over all processes and accumulated micro-batches.
struct GlobalBatch {
  int64_t per_process = 1;   ///< samples per forward pass in one process
  int64_t world_size = 1;    ///< number of processes that average their gradients
  int64_t accumulation = 1;  ///< forward passes per step
  /// The product of the three numbers.
  /// Throws: c10::ValueError if a number is below 1
  int64_t size() const;
};

/// The linear scaling rule: returns base_lr · batch.size() / base_batch. Combine it with a warm-up.
/// Params: base_lr – learning rate tuned for a global batch of base_batch samples
/// Throws: c10::ValueError if base_lr is negative or not finite, or if a batch size is below 1
/// Ref:    arXiv:1706.02677
double scaled_lr(double base_lr, const GlobalBatch& batch, int64_t base_batch = 256);

/// The global batch size as a pure function of the progress. The caller chooses the unit of progress: steps, epochs or
/// samples.
using BatchSizeSchedule = std::function<int64_t(int64_t progress)>;

/// Params: start, end – first and last size
///         increment – growth per stage; `end - start` must be a multiple of it
///         length – progress at which the size reaches `end`; all stages have equal length
struct RampOptions {
  int64_t start = 0;
  int64_t end = 0;
  int64_t increment = 1;
  int64_t length = 0;
};

/// Increases the size in equal increments, and then keeps it constant.
/// Throws: c10::ValueError if a size is below 1, `end` is below `start`, or `end - start` is not a multiple of
///         `increment`
/// Ref:    Megatron-LM's --rampup-batch-size (length in samples)
BatchSizeSchedule linear_batch_size(const RampOptions& options);

/// Multiplies the size by `growth` at each of `milestones`, up to `end`. It is the counterpart of multi_step_lr() with
/// gamma = 1 / growth.
/// Throws: c10::ValueError if a size or `growth` is below 1, or if milestones do not increase
/// Ref:    arXiv:1711.00489
BatchSizeSchedule multi_step_batch_size(int64_t start, int64_t end, std::vector<int64_t> milestones,
                                        int64_t growth = 2);

/// Returns the number of forward passes per step for a global batch: batch_size / (per_process · world_size).
/// Throws: c10::ValueError if batch_size is not a multiple of per_process · world_size
int64_t accumulation_for(int64_t batch_size, int64_t per_process, int64_t world_size = 1);

/// The linear scaling rule for a growing batch, as a schedule: batch_size(step) / base_batch. Use it as a factor in
/// chained().
/// Throws: c10::ValueError if base_batch is below 1 or there is no schedule
Schedule follow_batch_size(BatchSizeSchedule batch_size, int64_t base_batch);

}  // namespace bellows::optim
