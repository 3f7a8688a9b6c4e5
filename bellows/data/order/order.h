#pragma once

#include "bellows/data/source.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// A sequence of positions in a source: four bytes each where they fit, else eight; none at all for 0, 1, 2, ….
class Positions {
 public:
  /// 0 … size - 1, without memory. Read only.
  static Positions ascending(int64_t size);
  /// `size` times 0, to be set.
  /// Params: bound – above every value that it will hold
  Positions(int64_t size, int64_t bound);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return !narrow_.empty() ? static_cast<int64_t>(narrow_[at]) : !wide_.empty() ? wide_[at] : i;
  }
  void set(int64_t i, int64_t position);
  void swap(int64_t i, int64_t j);
  /// Without what is behind the first `size`.
  void truncate(int64_t size);
  int64_t bytes() const { return static_cast<int64_t>(narrow_.size() * sizeof(uint32_t) + wide_.size() * 8); }

 private:
  Positions() = default;
  int64_t size_ = 0;
  std::vector<uint32_t> narrow_;
  std::vector<int64_t> wide_;
};

/// In which sequence an epoch takes the samples of a source.
///
/// It knows of no ranks, batches or threads: those only cut the sequence (epoch_plan.h). So the number of samples taken
/// says all about how far an epoch is, and the rest can be delivered to any other number of ranks.
/// Threads:  safe; an order is never changed.
class Order {
 public:
  virtual ~Order() = default;
  /// Samples in an epoch. Cheap.
  /// Throws: c10::ValueError – the order was made for another source: its size and the expected one
  virtual int64_t length(const Source& source, int64_t epoch) const;
  /// The sequence: a pure function of the order, the source's size and blocks, `seed` and `epoch`, the same on every
  /// machine.
  /// Throws: as length
  virtual Positions positions(const Source& source, uint64_t seed, int64_t epoch) const = 0;
  /// Whether an epoch may take a sample more than once. Each time it then gets random transforms of its own.
  virtual bool repeats() const { return false; }

 protected:
  /// Samples that an epoch may have where samples come again.
  static constexpr int64_t kMaxDrawnEpoch = int64_t{1} << 33;
  /// Params: what – of which the order has one a sample
  /// Throws: c10::ValueError – an order for `expected` samples is used on a source of another size
  static void check_size(const char* who, const char* what, int64_t expected, const Source& source);
};

using OrderPtr = std::shared_ptr<const Order>;

/// The source's own. Cost: no memory.
OrderPtr sequential();

/// A new permutation of all samples each epoch.
/// Cost: 4 bytes a sample (8 from 2^32 samples on); 1e8 samples took 7 to 10 s on a busy core, the local shuffles 3 s
OrderPtr shuffled();

/// Blocks in a random sequence, their samples through a buffer: each sample is drawn from the next `buffer` that were
/// not taken yet. WebDataset's shardshuffle and shuffle(buffer, initial = buffer), with random access in place of the
/// filling, and resumable.
/// Throws: c10::ValueError – buffer below 1
/// Ref:    webdataset/filters.py
OrderPtr buffered(int64_t buffer);

struct PageShuffle {
  int64_t window = 4;  ///< blocks in one lane that are shuffled together
  int64_t lanes = 16;  ///< streams that the epoch is woven of; a multiple of the ranks you may use
  int64_t run = 32;    ///< samples in a row from one lane; batch sizes that are multiples of it keep to few lanes
};

/// Random, with reads that stay local: blocks (Source::block_starts) in a random sequence, cut into lanes of equal
/// length; each lane is shuffled within windows of a few blocks, and the lanes take turns.
///
/// Where `lanes` is a multiple of batch_size / run · world_size, each rank reads from lanes of its own, each of its
/// blocks once, while its windows stay open; yet the sequence itself knows of no ranks, so any other world size goes on
/// with it. A source without blocks is shuffled wholly.
/// Cost:   8 bytes a sample while it is made, 4 afterwards; open at a time on each rank: lanes / world_size · window
///         blocks
/// Throws: c10::ValueError – an option below 1
OrderPtr page_shuffled(PageShuffle options = {});

struct Weighted {
  bool replacement = true;  ///< a sample may come again; otherwise at most once an epoch
  int64_t samples = 0;      ///< in an epoch; 0: as many as the source has, without replacement as can be drawn
};

/// Draws with probability in proportion to `weights`, each independent of the others; without replacement, among those
/// not drawn yet.
/// Numerics: the weights are rounded to integers with a sum below 2^62, so that drawing is exact and the same on every
///           machine; what is not 0 stays at least 2^-62 of the sum
/// Cost:     8 bytes a sample, 4 a draw; without replacement 8 more a sample while it is made; O(log n) a draw
/// Throws:   c10::ValueError – a weight negative or not finite, all 0, fewer than `samples` above 0 without replacement,
///           samples outside [0, 2^33]
/// Ref:      torch.utils.data.WeightedRandomSampler
OrderPtr weighted(const std::vector<double>& weights, Weighted options = {});

/// Every class equally often: rounds over all classes in random sequence, so that every stretch of k rounds holds k of
/// each. A class's samples are shuffled, and shuffled anew when all were taken; the turn goes on from epoch to epoch.
/// Params: labels – one a sample (labels.h), any integers
///         per_class – samples of each class in an epoch; 0: size / classes, rounded up
/// Cost:   4 bytes a sample; 8 a sample of the epoch while it is made, 4 afterwards
/// Throws: c10::ValueError – no labels, per_class negative, an epoch of over 2^33 samples
OrderPtr class_balanced(const std::vector<int64_t>& labels, int64_t per_class = 0);

/// The share of the samples, easiest first, that may be drawn at `progress`: epochs done, 2.5 in the midst of the
/// third. In (0, 1]; never falling.
using Pacing = std::function<double(double progress)>;

/// Grows from `start` at progress 0 to 1 at `epochs`: linearly, or with `root` as the root of a line between the
/// squares, which takes new samples in ever more slowly.
/// Throws: c10::ValueError – start outside (0, 1], epochs not positive
/// Ref:    arXiv:1903.09848
Pacing growing_pacing(double start, double epochs, bool root = false);

/// Easy samples first: each is drawn from those that `pacing` lets in and that this epoch has not taken yet. An epoch
/// takes the share that is let in at its end, each sample of it once.
/// Params: difficulty – one a sample: its loss under a trained model, its length, …; equal ones keep the source's order
/// Cost:   4 bytes a sample, 4 more a sample of the epoch
/// Throws: c10::ValueError – a difficulty that is not a number; from positions: a pacing outside (0, 1]
/// Ref:    arXiv:1904.03626
OrderPtr curriculum(const std::vector<double>& difficulty, Pacing pacing);

}  // namespace bellows::data
