#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

/// What becomes of the samples at an epoch's end that do not fill a batch on every rank. All ranks make the same
/// number of steps in any case.
enum class Remainder {
  uneven,  ///< each sample once: the last batches are smaller, as equal as possible, empty where ranks outnumber samples
  drop,    ///< left out
  pad      ///< the last batches are filled with samples from the sequence's front; Batch::padding() counts them
};

/// How an epoch is divided among ranks and batches.
struct Division {
  int64_t batch_size = 32;  ///< of each rank
  int64_t rank = 0;
  int64_t world_size = 1;
  Remainder remainder = Remainder::uneven;
  bool share_batch = false;  ///< batch_size is that of all ranks together, who share it as equally as they can
};

/// Samples that all ranks take in a full step.
int64_t samples_per_step(const Division& division);

/// Throws: c10::ValueError – no batch size, a rank outside the world; names `who`
void check_division(const char* who, const Division& division);
/// Batches that each rank gets out of `samples`.
int64_t count_batches(int64_t samples, const Division& division);
/// Samples that all ranks together get: fewer than `samples` for drop, more for pad.
int64_t count_delivered(int64_t samples, const Division& division);

/// Where a batch stands.
struct BatchPlace {
  int64_t epoch = 0;
  int64_t index = 0;
  int64_t consumed = 0;    ///< samples that all ranks have taken with this batch
  int64_t padding = 0;     ///< trailing rows that are there a second time, to fill the batch
  double loss_weight = 1;  ///< rows of this rank in the step over the mean of all ranks
};

/// What one rank takes in one step.
struct BatchPlan {
  std::vector<int64_t> positions;  ///< in the source, one a row
  BatchPlace place;
  int64_t first = 0;     ///< where in the sequence row 0 stands
  bool repeats = false;  ///< Order::repeats
};

/// One epoch as one rank sees it: step g of all ranks takes the next samples_per_step() of the sequence, rank r the r-th
/// share of them.
class EpochPlan {
 public:
  /// Params: consumed – samples that were taken already, by whatever number of ranks: the plan is about the rest
  /// Throws: c10::ValueError – consumed outside [0, length of the sequence]; as Order::positions
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
