#pragma once

#include "bellows/data/source.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// A sequence of positions in a source. It takes four bytes per position if they fit, else eight; the sequence 0, 1, 2,
/// … takes no memory.
class Positions {
 public:
  /// The read-only sequence 0 … size - 1, without memory.
  static Positions ascending(int64_t size);
  /// Creates `size` zeros, to be overwritten by set().
  /// Params: bound – exclusive upper bound of all values
  Positions(int64_t size, int64_t bound);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return !narrow_.empty() ? static_cast<int64_t>(narrow_[at]) : !wide_.empty() ? wide_[at] : i;
  }
  void set(int64_t i, int64_t position);
  void swap(int64_t i, int64_t j);
  /// Keeps only the first `size` positions.
  void truncate(int64_t size);
  int64_t bytes() const { return static_cast<int64_t>(narrow_.size() * sizeof(uint32_t) + wide_.size() * 8); }

 private:
  Positions() = default;
  int64_t size_ = 0;
  std::vector<uint32_t> narrow_;
  std::vector<int64_t> wide_;
};

/// The sequence in which an epoch takes the samples of a source.
///
/// It does not depend on ranks, batches or threads, which only divide the sequence (epoch_plan.h). The number of
/// consumed samples therefore fully describes the progress of an epoch, and any other number of ranks can take the
/// rest.
/// Threads: thread-safe; an order is immutable
class Order {
 public:
  virtual ~Order() = default;
  /// Number of samples in an epoch. Cheap.
  /// Throws: c10::ValueError if the order was made for a source of another size; the message names both sizes
  virtual int64_t length(const Source& source, int64_t epoch) const;
  /// The sequence: a pure function of the order, the source's size and blocks, `seed` and `epoch`. It is the same on
  /// every machine.
  /// Throws: as length
  virtual Positions positions(const Source& source, uint64_t seed, int64_t epoch) const = 0;
  /// True if an epoch may take a sample more than once. Each occurrence then gets its own random transforms.
  virtual bool repeats() const { return false; }

 protected:
  /// Upper limit of the samples in an epoch with repeated samples.
  static constexpr int64_t kMaxDrawnEpoch = int64_t{1} << 33;
  /// Params: who – name of the order, for the error message
  ///         what – the quantity of which the order holds one per sample
  /// Throws: c10::ValueError if an order for `expected` samples is used on a source of another size
  static void check_size(const char* who, const char* what, int64_t expected, const Source& source);
};

using OrderPtr = std::shared_ptr<const Order>;

/// The source's own order.
/// Cost: no memory
OrderPtr sequential();

/// A new permutation of all samples in each epoch.
/// Cost: 4 bytes per sample (8 from 2^32 samples on); 1e8 samples took 7 to 10 s on a busy core, the local shuffles 3 s
OrderPtr shuffled();

/// Takes the blocks in a random sequence and passes their samples through a shuffle buffer: each sample is drawn from
/// the next `buffer` samples that were not taken yet. This corresponds to WebDataset's shardshuffle and shuffle(buffer,
/// initial = buffer), but it uses random access instead of filling a buffer, and it can resume.
/// Throws: c10::ValueError if buffer is below 1
/// Ref:    webdataset/filters.py
OrderPtr buffered(int64_t buffer);

struct PageShuffle {
  int64_t window = 4;  ///< blocks of one lane that are shuffled together
  int64_t lanes = 16;  ///< streams that the epoch interleaves; use a multiple of the number of ranks
  int64_t run = 32;    ///< consecutive samples from one lane; batch sizes that are multiples of it read from few lanes
};

/// A random order that keeps reads local. The blocks (Source::block_starts) form a random sequence, which is cut into
/// lanes of equal length. Each lane is shuffled within windows of a few blocks, and the lanes take turns.
///
/// If `lanes` is a multiple of batch_size / run · world_size, each rank reads from its own lanes. It reads each of
/// their blocks once, while the block's window is open. The sequence itself does not depend on the ranks, so you can
/// resume with any other world size. A source without blocks is shuffled completely.
/// Cost:   8 bytes per sample while the sequence is computed, 4 afterwards; each rank has lanes / world_size · window
///         blocks open at a time
/// Throws: c10::ValueError if an option is below 1
OrderPtr page_shuffled(PageShuffle options = {});

struct Weighted {
  bool replacement = true;  ///< a sample may occur several times; otherwise at most once per epoch
  int64_t samples = 0;      ///< per epoch; 0: the size of the source, or without replacement as many as can be drawn
};

/// Draws samples independently, with probability proportional to `weights`; without replacement, among those not drawn
/// yet.
/// Numerics: the weights are rounded to integers with a sum below 2^62, so that drawing is exact and the same on every
///           machine; a positive weight stays at least 2^-62 of the sum
/// Cost:     8 bytes per sample, 4 per draw; without replacement, 8 more per sample while the sequence is computed;
///           O(log n) per draw
/// Throws:   c10::ValueError if a weight is negative or not finite, or if all are 0; if `samples` is outside [0, 2^33];
///           without replacement, if fewer than `samples` weights are above 0
/// Ref:      torch.utils.data.WeightedRandomSampler
OrderPtr weighted(const std::vector<double>& weights, Weighted options = {});

/// Takes every class equally often, in rounds over all classes in random sequence: any k consecutive rounds hold k
/// samples of each class. The samples of a class are shuffled, and shuffled again after each pass. The passes continue
/// across epochs.
/// Params: labels – one per sample (labels.h), any integers
///         per_class – samples of each class in an epoch; 0: size / classes, rounded up
/// Cost:   4 bytes per sample; 8 per sample of the epoch while the sequence is computed, 4 afterwards
/// Throws: c10::ValueError if there are no labels, if per_class is negative, or if the epoch would have more than 2^33
///         samples
OrderPtr class_balanced(const std::vector<int64_t>& labels, int64_t per_class = 0);

/// Returns the share of the samples, easiest first, that may be drawn at `progress`, in (0, 1]. It must not decrease.
/// `progress` counts completed epochs: 2.5 is the middle of the third epoch.
using Pacing = std::function<double(double progress)>;

/// Grows from `start` at progress 0 to 1 at progress `epochs`: linearly, or with `root` as the square root of a line
/// between the squares, which adds new samples more and more slowly.
/// Throws: c10::ValueError if start is outside (0, 1] or epochs is not positive
/// Ref:    arXiv:1903.09848
Pacing growing_pacing(double start, double epochs, bool root = false);

/// Takes easy samples first: each sample is drawn from those that `pacing` admits and that this epoch has not taken
/// yet. An epoch takes each sample of the share that is admitted at its end once.
/// Params: difficulty – one per sample: for example its loss under a trained model, or its length; ties keep the
///         source's order
///         pacing – see Pacing
/// Cost:   4 bytes per sample, 4 more per sample of the epoch
/// Throws: c10::ValueError if a difficulty is NaN. positions() throws c10::ValueError if pacing returns a value outside
///         (0, 1]
/// Ref:    arXiv:1904.03626
OrderPtr curriculum(const std::vector<double>& difficulty, Pacing pacing);

}  // namespace bellows::data
