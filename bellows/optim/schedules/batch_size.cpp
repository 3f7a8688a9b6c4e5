#include "bellows/optim/schedules/batch_size.h"

#include <algorithm>
#include <limits>

#include "bellows/optim/schedules/schedule_check.h"

namespace bellows::optim {

int64_t GlobalBatch::size() const {
  check::count("GlobalBatch", "per_process", per_process);
  check::count("GlobalBatch", "world_size", world_size);
  check::count("GlobalBatch", "accumulation", accumulation);
  return per_process * world_size * accumulation;
}

double scaled_lr(double base_lr, const GlobalBatch& batch, int64_t base_batch) {
  check::number("scaled_lr", "base_lr", base_lr);
  check::count("scaled_lr", "base_batch", base_batch);
  return base_lr * static_cast<double>(batch.size()) / static_cast<double>(base_batch);
}

BatchSizeSchedule linear_batch_size(const RampOptions& options) {
  check::count("linear_batch_size", "start", options.start);
  check::count("linear_batch_size", "increment", options.increment);
  check::count("linear_batch_size", "length", options.length, 0);
  const int64_t growth = options.end - options.start, increments = growth / options.increment;
  TORCH_CHECK_VALUE(growth >= 0 && growth % options.increment == 0,
                    "linear_batch_size: expected end - start to be a multiple of increment and at least 0, got start ",
                    options.start, ", increment ", options.increment, ", end ", options.end, ".");
  TORCH_CHECK_VALUE(options.length <= std::numeric_limits<int64_t>::max() / std::max(increments, int64_t{1}),
                    "linear_batch_size: length ", options.length, " is too large for ", increments, " increments.");
  return [o = options, increments](int64_t progress) {
    if (progress >= o.length) return o.end;
    return o.start + o.increment * (progress * increments / o.length);
  };
}

BatchSizeSchedule multi_step_batch_size(int64_t start, int64_t end, std::vector<int64_t> milestones, int64_t growth) {
  check::count("multi_step_batch_size", "start", start);
  check::count("multi_step_batch_size", "end", end, start);
  check::count("multi_step_batch_size", "growth", growth);
  check::increasing("multi_step_batch_size", milestones);
  return [=, milestones = std::move(milestones)](int64_t progress) {
    int64_t size = start;
    for (size_t i = 0; i < milestones.size() && progress >= milestones[i] && size < end; ++i) {
      size = size > end / growth ? end : size * growth;
    }
    return size;
  };
}

int64_t accumulation_for(int64_t batch_size, int64_t per_process, int64_t world_size) {
  const int64_t at_once = GlobalBatch{.per_process = per_process, .world_size = world_size}.size();
  TORCH_CHECK_VALUE(batch_size >= at_once && batch_size % at_once == 0, "accumulation_for: a global batch of ",
                    batch_size, " cannot be divided into forward passes of ", per_process, " samples on ", world_size,
                    " processes. Choose a multiple of ", at_once, ".");
  return batch_size / at_once;
}

Schedule follow_batch_size(BatchSizeSchedule batch_size, int64_t base_batch) {
  check::count("follow_batch_size", "base_batch", base_batch);
  TORCH_CHECK_VALUE(batch_size, "follow_batch_size: expected a batch-size schedule, got an empty function.");
  return [batch_size = std::move(batch_size), base = static_cast<double>(base_batch)](int64_t step) {
    return static_cast<double>(batch_size(step)) / base;
  };
}

}  // namespace bellows::optim
