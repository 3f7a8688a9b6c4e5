#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

/// Selects what happens to the samples at the end of an epoch if they do not fill a batch on every rank. In each case,
/// all ranks make the same number of steps.
enum class Remainder {
  /// Uses each sample once. The last batches are smaller and as equal in size as possible. If there are more ranks than
  /// samples, some batches are empty.
  uneven,
  drop,  ///< leaves the samples out
  pad    ///< fills the last batches with samples from the start of the sequence (see Batch::padding())
};

/// Describes how an epoch is divided among ranks and batches.
struct Division {
  int64_t batch_size = 32;  ///< batch size per rank
  int64_t rank = 0;
  int64_t world_size = 1;
  Remainder remainder = Remainder::uneven;
  /// If true, batch_size counts the samples of all ranks together and is divided as equally as possible.
  bool global_batch = false;
  /// If true, a last batch that is not full goes to the ranks in order: each rank gets as many samples as in a full
  /// batch, and the last ranks get fewer or none. Requires a global_batch that the number of ranks divides.
  bool fill_in_order = false;
};

/// Returns the number of samples in a full step on all ranks together.
int64_t samples_per_step(const Division& division);

/// Checks a division.
/// Params: who – name of the caller, for the error message
/// Throws: c10::ValueError if the batch size or the world size is out of range, or if the rank is not in [0,
///         world_size)
void check_division(const char* who, const Division& division);
/// Returns the number of batches that each rank gets if an epoch has `samples` samples.
int64_t count_batches(int64_t samples, const Division& division);
/// Returns the number of samples that all ranks together get. It is smaller than `samples` for Remainder::drop and
/// larger for Remainder::pad.
int64_t count_delivered(int64_t samples, const Division& division);

/// The position of a batch in the training run.
struct BatchPlace {
  int64_t epoch = 0;
  int64_t index = 0;
  int64_t consumed = 0;  ///< number of samples of the epoch that all ranks have consumed, including this batch
  int64_t padding = 0;   ///< number of rows at the end that fill the batch with repeated samples
  /// Number of rows of this rank in the step, divided by the mean number of rows over all ranks.
  double loss_weight = 1;
};

/// The samples of one rank in one step.
struct BatchPlan {
  std::vector<int64_t> positions;  ///< positions in the source, one per row
  BatchPlace place;
  int64_t first = 0;     ///< position of row 0 in the sequence
  bool repeats = false;  ///< value of Order::repeats()
};

/// The part of one epoch that one rank processes. In each step, all ranks together take the next samples_per_step()
/// samples of the sequence, and rank r takes the r-th part of them.
class EpochPlan {
 public:
  /// Params: consumed – number of samples that were already consumed, by any number of ranks; the plan covers the rest
  /// Throws: c10::ValueError if `consumed` is outside [0, length of the sequence]; exceptions of Order::positions
  EpochPlan(const Source& source, const Order& order, uint64_t seed, int64_t epoch, const Division& division,
            int64_t consumed = 0);

  /// Returns the number of batches, which is the same on every rank.
  int64_t batches() const { return batches_; }
  /// Params: step – in [0, batches())
  BatchPlan batch(int64_t step) const;

 private:
  Positions positions_;
  Division division_;
  int64_t epoch_, consumed_, batches_ = 0;
  bool repeats_;
};

}  // namespace bellows::data
