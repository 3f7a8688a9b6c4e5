#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

/// How to handle the samples at the end of an epoch that do not fill a batch on every rank. All ranks make the same
/// number of steps in each case.
enum class Remainder {
  /// each sample once; the last batches are smaller, as equal in size as possible, and some are empty if there are more
  /// ranks than samples
  uneven,
  drop,  ///< the samples are left out
  pad    ///< the last batches are filled with samples from the start of the sequence; see Batch::padding()
};

/// How an epoch is divided among ranks and batches.
struct Division {
  int64_t batch_size = 32;  ///< per rank
  int64_t rank = 0;
  int64_t world_size = 1;
  Remainder remainder = Remainder::uneven;
  bool global_batch = false;  ///< if true, batch_size is that of all ranks together, divided as equally as possible
};

/// Samples that all ranks together take in a full step.
int64_t samples_per_step(const Division& division);

/// Params: who – name of the caller, for the error message
/// Throws: c10::ValueError if the batch size or the world size is out of range, or if the rank is not in [0,
///         world_size)
void check_division(const char* who, const Division& division);
/// Number of batches that each rank gets from `samples`.
int64_t count_batches(int64_t samples, const Division& division);
/// Number of samples that all ranks together get: fewer than `samples` for drop, more for pad.
int64_t count_delivered(int64_t samples, const Division& division);

/// The position of a batch within training.
struct BatchPlace {
  int64_t epoch = 0;
  int64_t index = 0;
  int64_t consumed = 0;    ///< samples that all ranks have consumed, including this batch
  int64_t padding = 0;     ///< trailing rows that are repeated samples, to fill the batch
  double loss_weight = 1;  ///< rows of this rank in the step, divided by the mean over all ranks
};

/// The samples of one rank in one step.
struct BatchPlan {
  std::vector<int64_t> positions;  ///< in the source, one per row
  BatchPlace place;
  int64_t first = 0;     ///< position of row 0 in the sequence
  bool repeats = false;  ///< Order::repeats
};

/// One epoch from the view of one rank. Step g of all ranks takes the next samples_per_step() samples of the sequence,
/// and rank r takes the r-th part of them.
class EpochPlan {
 public:
  /// Params: consumed – samples that were already taken, by any number of ranks; the plan covers the rest
  /// Throws: c10::ValueError if `consumed` is outside [0, length of the sequence], or as Order::positions
  EpochPlan(const Source& source, const Order& order, uint64_t seed, int64_t epoch, const Division& division,
            int64_t consumed = 0);

  /// The same on every rank.
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
