#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bellows/optim/schedules/schedule.h"

namespace bellows::optim {

/// How many samples one optimizer step sees, over all processes and accumulated micro-batches.
struct GlobalBatch {
  int64_t per_process = 1;   ///< samples of one forward pass of one process
  int64_t world_size = 1;    ///< processes that average their gradients
  int64_t accumulation = 1;  ///< forward passes a step
  /// The product. Throws: c10::ValueError – a number below 1
  int64_t size() const;
};

/// The linear scaling rule, for the global batch: base_lr · batch.size() / base_batch. With it goes a warm-up.
/// Params:   base_lr – the rate that is right for a global batch of base_batch samples
/// Throws:   c10::ValueError – a negative or infinite rate, a batch below 1
/// Ref:      arXiv:1706.02677
double scaled_lr(double base_lr, const GlobalBatch& batch, int64_t base_batch = 256);

/// The global batch size as a pure function of the progress. Its unit is the caller's: steps, epochs or samples.
using BatchSizeSchedule = std::function<int64_t(int64_t progress)>;

/// Params:   start, end – first and last size
///           increment – the size grows by so much at a time; end - start is a multiple of it
///           length – progress at which `end` is reached, in equal stretches
struct RampOptions {
  int64_t start = 0;
  int64_t end = 0;
  int64_t increment = 1;
  int64_t length = 0;
};

/// Grows in equal increments, then stays.
/// Throws:   c10::ValueError – sizes below 1, an end below the start, an increment that does not fit
/// Ref:      Megatron-LM's --rampup-batch-size (length in samples)
BatchSizeSchedule linear_batch_size(const RampOptions& options);

/// Multiplied by `growth` at each of `milestones`, up to `end`: the counterpart of multi_step_lr() with gamma = 1 /
/// growth.
/// Throws:   c10::ValueError – sizes or growth below 1, milestones that do not increase
/// Ref:      arXiv:1711.00489
BatchSizeSchedule multi_step_batch_size(int64_t start, int64_t end, std::vector<int64_t> milestones,
                                        int64_t growth = 2);

/// Forward passes a step that make up a global batch: batch_size / (per_process · world_size).
/// Throws:   c10::ValueError – it does not divide: the gradient would be another batch's
int64_t accumulation_for(int64_t batch_size, int64_t per_process, int64_t world_size = 1);

/// The linear scaling rule for a batch that grows: batch_size(step) / base_batch, a factor for chained().
/// Throws:   c10::ValueError – base_batch below 1, no schedule
Schedule follow_batch_size(BatchSizeSchedule batch_size, int64_t base_batch);

}  // namespace bellows::optim
