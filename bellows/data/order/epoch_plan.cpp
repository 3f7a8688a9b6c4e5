#include "bellows/data/order/epoch_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::data {

namespace {

constexpr int64_t kMaxWorld = 1 << 24;
constexpr int64_t kMaxPaddedBatch = int64_t{1} << 32;

/// Samples that all ranks take in a full step, limited to `samples` + 1.
int64_t step_size(int64_t samples, const Division& division) {
  const int64_t ranks = division.global_batch ? 1 : division.world_size;
  return division.batch_size > samples / ranks ? samples + 1 : division.batch_size * ranks;
}

/// Start of a rank's share of samples that all ranks share. Rank 0, whose running statistics all ranks use, has a
/// sample in every step.
int64_t shared_begin(int64_t samples, int64_t rank, int64_t world) {
  return (samples * rank + world - 1) / world;
}

/// Start of a rank's share of a full step.
int64_t share_begin(const Division& division, int64_t rank) {
  return division.global_batch ? shared_begin(division.batch_size, rank, division.world_size)
                               : division.batch_size * rank;
}

}  // namespace

int64_t samples_per_step(const Division& division) {
  return division.batch_size * (division.global_batch ? 1 : division.world_size);
}

void check_division(const char* who, const Division& division) {
  TORCH_CHECK_VALUE(division.batch_size > 0, who, ": expected a batch size of at least 1, got ", division.batch_size,
                    ".");
  TORCH_CHECK_VALUE(division.world_size > 0 && division.world_size <= kMaxWorld, who, ": expected a world of 1 to ",
                    kMaxWorld, " ranks, got ", division.world_size, ".");
  TORCH_CHECK_VALUE(division.rank >= 0 && division.rank < division.world_size, who, ": expected a rank in [0, ",
                    division.world_size, "), got ", division.rank, ".");
  TORCH_CHECK_VALUE(
      !division.fill_in_order || (division.global_batch && division.batch_size % division.world_size == 0), who,
      ": fill_in_order needs a global batch that ", division.world_size, " ranks can divide equally, got ",
      division.batch_size, " samples.");
  TORCH_CHECK_VALUE(division.remainder != Remainder::pad || division.batch_size <= kMaxPaddedBatch, who,
                    ": expected a batch size of at most ", kMaxPaddedBatch, " if batches are padded, got ",
                    division.batch_size, ".");
}

int64_t count_batches(int64_t samples, const Division& division) {
  const int64_t step = step_size(samples, division), full = samples / step;
  return full + (division.remainder != Remainder::drop && samples % step > 0 ? 1 : 0);
}

int64_t count_delivered(int64_t samples, const Division& division) {
  const int64_t step = step_size(samples, division);
  if (division.remainder == Remainder::uneven || samples % step == 0) return samples;
  if (division.remainder == Remainder::drop) return samples - samples % step;
  return count_batches(samples, division) * samples_per_step(division);
}

EpochPlan::EpochPlan(const Source& source, const Order& order, uint64_t seed, int64_t epoch, const Division& division,
                     int64_t consumed)
    : positions_(order.positions(source, seed, epoch)),
      division_(division),
      epoch_(epoch),
      consumed_(consumed),
      repeats_(order.repeats()) {
  check_division("EpochPlan", division);
  TORCH_CHECK_VALUE(consumed >= 0 && consumed <= positions_.size(), "EpochPlan: expected 0 to ", positions_.size(),
                    " samples that are already consumed, got ", consumed, ". Epoch ", epoch, " has ", positions_.size(),
                    " samples over all ranks.");
  batches_ = count_batches(positions_.size() - consumed, division);
}

BatchPlan EpochPlan::batch(int64_t step) const {
  const int64_t size = positions_.size(), rank = division_.rank, world = division_.world_size;
  const int64_t all = step_size(size - consumed_, division_);
  const int64_t taken = consumed_ + step * all, rest = size - taken;
  const bool full = rest >= all || division_.remainder == Remainder::pad;
  int64_t begin = taken, end = taken;
  if (full) {
    begin += share_begin(division_, rank);
    end += share_begin(division_, rank + 1);
  } else if (division_.fill_in_order) {
    begin += std::min(rest, share_begin(division_, rank));
    end += std::min(rest, share_begin(division_, rank + 1));
  } else if (division_.global_batch) {
    begin += shared_begin(rest, rank, world);
    end += shared_begin(rest, rank + 1, world);
  } else {
    begin += rest * rank / world;
    end += rest * (rank + 1) / world;
  }
  BatchPlan plan;
  plan.positions.reserve(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) plan.positions.push_back(positions_[i < size ? i : (i - size) % size]);
  plan.place = {.epoch = epoch_,
                .index = step,
                .consumed = taken + std::min(all, rest),
                .padding = std::clamp<int64_t>(end - size, 0, end - begin),
                .loss_weight = static_cast<double>((end - begin) * world) /
                               static_cast<double>(full ? samples_per_step(division_) : rest)};
  plan.first = begin;
  plan.repeats = repeats_;
  return plan;
}

}  // namespace bellows::data
