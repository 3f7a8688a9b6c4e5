#pragma once

#include "bellows/data/source.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// A sequence of positions in a source. It uses four bytes per position if all values are below 2^32, otherwise eight
/// bytes. The sequence 0, 1, 2, … uses no memory.
class Positions {
 public:
  /// Returns the read-only sequence 0 … size - 1, which uses no memory.
  static Positions ascending(int64_t size);
  /// Creates a sequence of `size` zeros. Replace them with set().
  /// Params: bound – exclusive upper bound of all values
  Positions(int64_t size, int64_t bound);

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return !narrow_.empty() ? static_cast<int64_t>(narrow_[at]) : !wide_.empty() ? wide_[at] : i;
  }
  void set(int64_t i, int64_t position);
  void swap(int64_t i, int64_t j);
  /// Removes all positions after the first `size` positions.
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
/// The sequence does not depend on ranks, batches or threads, which only divide it (epoch_plan.h). Therefore, the
/// number of consumed samples fully describes the progress of an epoch, and any number of ranks can process the rest.
/// Threads: thread-safe; an order is immutable
class Order {
 public:
  virtual ~Order() = default;
  /// Returns the number of samples in an epoch. The call is cheap.
  /// Throws: c10::ValueError if the order was made for a source of a different size; the message names both sizes
  virtual int64_t length(const Source& source, int64_t epoch) const;
  /// Returns the sequence of an epoch. It is a pure function of the order, the source's size and blocks, `seed` and
  /// `epoch`, and is the same on every machine.
  /// Throws: see length()
  virtual Positions positions(const Source& source, uint64_t seed, int64_t epoch) const = 0;
  /// Returns true if an epoch may take a sample more than once. Each occurrence then has different random transforms.
  virtual bool repeats() const { return false; }

 protected:
  /// Maximum number of samples in an epoch of orders that draw or repeat samples.
  static constexpr int64_t kMaxDrawnEpoch = int64_t{1} << 33;
  /// Params: who – name of the order, for the error message
  ///         what – name of the quantity that the order stores for each sample, for the error message
  /// Throws: c10::ValueError if the source does not have `expected` samples
  static void check_size(const char* who, const char* what, int64_t expected, const Source& source);
};

using OrderPtr = std::shared_ptr<const Order>;

/// Returns the source's own order.
/// Cost: no memory
OrderPtr sequential();

/// Returns an order that is a new permutation of all samples in each epoch.
/// Cost: 4 bytes per sample (8 bytes from 2^32 samples on). 1e8 samples took 7 to 10 s on a busy core; the local
///       shuffles buffered() and page_shuffled() took 3 s
OrderPtr shuffled();

/// Returns an order that puts the blocks in random order and passes their samples through a shuffle buffer. Each sample
/// is drawn from the next `buffer` samples that have not been drawn yet. The result corresponds to WebDataset's
/// shardshuffle and shuffle(buffer, initial = buffer). However, it uses random access instead of filling a buffer, and
/// it can resume.
/// Throws: c10::ValueError if buffer is below 1
/// Ref:    webdataset/filters.py
OrderPtr buffered(int64_t buffer);

struct PageShuffle {
  int64_t window = 4;  ///< number of blocks of one lane (see page_shuffled()) that are shuffled together
  int64_t lanes = 16;  ///< number of lanes that the epoch interleaves; use a multiple of the number of ranks
  /// Number of consecutive samples from one lane. If the batch size is a multiple of `run`, a batch reads from few
  /// lanes.
  int64_t run = 32;
};

/// Returns a random order in which reads stay local. The blocks (Source::block_starts) are put into a random sequence,
/// and this sequence is cut into lanes of equal length. Each lane is shuffled within windows of a few blocks. The order
/// then takes `run` samples from each lane in turn.
///
/// If `lanes` is a multiple of batch_size / run · world_size, each rank reads from its own lanes. It reads each block
/// of these lanes once, while the block's window is open. The sequence itself does not depend on the ranks, so you can
/// resume with any number of ranks. A source without blocks is shuffled completely.
/// Cost:   8 bytes per sample while the sequence is computed, 4 bytes afterwards. Each rank has lanes / world_size ·
///         window blocks open at a time
/// Throws: c10::ValueError if an option is below 1
OrderPtr page_shuffled(PageShuffle options = {});

struct Weighted {
  bool replacement = true;  ///< if true, a sample may occur several times per epoch; otherwise, at most once
  /// Number of samples per epoch. 0 means the size of the source. Without replacement, 0 means all samples with a
  /// weight above 0.
  int64_t samples = 0;
};

/// Returns an order that draws samples with probability proportional to `weights`. With replacement, draws are
/// independent. Without replacement, each sample is drawn from the samples that have not been drawn yet.
/// Numerics: weights are rounded to integers with a sum below 2^62, so that drawing is exact and the same on every
///           machine. A positive weight is at least 2^-62 of the sum
/// Cost:     8 bytes per sample and 4 bytes per draw; without replacement, 8 more bytes per sample while the sequence
///           is computed; O(log n) per draw
/// Throws:   c10::ValueError if there are no weights, if a weight is negative or not finite, or if all weights are 0;
///           if `samples` is outside [0, 2^33]; without replacement, if fewer than `samples` weights are above 0
/// Ref:      torch.utils.data.WeightedRandomSampler
OrderPtr weighted(const std::vector<double>& weights, Weighted options = {});

/// Returns an order that takes every class equally often. The order consists of rounds, each of which takes one sample
/// of each class in random order. Each pass over the samples of a class has a new random order. A pass continues in the
/// next epoch.
/// Params: labels – one label per sample (labels.h), any integers
///         per_class – number of samples of each class in an epoch; 0: size / classes, rounded up
/// Cost:   4 bytes per sample; 8 bytes per sample of the epoch while the sequence is computed, 4 bytes afterwards
/// Throws: c10::ValueError if there are no labels, if per_class is negative, or if the epoch would have more than 2^33
///         samples
OrderPtr class_balanced(const std::vector<int64_t>& labels, int64_t per_class = 0);

/// A function that returns the share of the samples that may be drawn at `progress`. This share consists of the easiest
/// samples. The result must be in (0, 1] and must not decrease as `progress` increases. `progress` counts completed
/// epochs, so 2.5 is the middle of the third epoch.
using Pacing = std::function<double(double progress)>;

/// Returns a pacing that grows from `start` at progress 0 to 1 at progress `epochs`. By default, the share grows
/// linearly. With `root`, the square of the share grows linearly, so new samples are added more and more slowly.
/// Throws: c10::ValueError if start is outside (0, 1], or if epochs is not positive and finite
/// Ref:    arXiv:1903.09848
Pacing growing_pacing(double start, double epochs, bool root = false);

/// Returns an order that starts with easy samples. Each sample is drawn from the samples that `pacing` admits and that
/// have not been drawn in this epoch. An epoch takes exactly once each sample that `pacing` admits at the end of the
/// epoch.
/// Params: difficulty – one value per sample, for example its loss under a trained model, or its length; samples with
///         equal values stay in the order of the source
/// Cost:   4 bytes per sample, plus 4 bytes per sample of the epoch
/// Throws: c10::ValueError if a difficulty is NaN or `pacing` is empty. positions() throws c10::ValueError if `pacing`
///         returns a value outside (0, 1]
/// Ref:    arXiv:1904.03626
OrderPtr curriculum(const std::vector<double>& difficulty, Pacing pacing);

}  // namespace bellows::data
