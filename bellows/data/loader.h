#pragma once

#include "bellows/data/batch.h"
#include "bellows/data/pipeline.h"
#include "bellows/data/source.h"

#include <memory>
#include <optional>

namespace bellows::data {

/// What to do with a sample that cannot be used: an image that does not decode, a missing field, a bad or out-of-range
/// label.
enum class OnBadSample {
  fail,  ///< next() throws
  skip   ///< the batch comes without it, smaller; counted, and the first few are logged
};

/// How a loader cuts an epoch into batches and makes them.
struct LoaderOptions {
  // What comes out.
  int64_t batch_size = 32;
  bool drop_last = false;  ///< leave out the last batch when it is not full
  bool shuffle = false;    ///< a new permutation of all samples each epoch
  uint64_t seed = 0;       ///< of the permutations and of random transforms
  OnBadSample on_bad_sample = OnBadSample::fail;
  // How fast.
  int64_t threads = 1;   ///< workers beside the caller; 0: all work is done in next()
  int64_t prefetch = 2;  ///< batches made ahead; without threads none are
};

/// Makes batches from a source, ahead of time and in several threads.
///
/// Which samples form which batch, and each value in it, is a pure function of (source, pipeline, seed, epoch): the
/// number of threads changes nothing. Workers take slices of the next batches in order; next() helps with the batch
/// that it waits for. A batch whose samples are all skipped is left out. Batch memory is recycled: no allocation of
/// it once the loop is going.
/// Threads:  one thread uses a loader; it may be destroyed, or started anew, at any moment.
class Loader {
 public:
  /// Throws: c10::ValueError – no samples, no full batch with drop_last, options out of range
  Loader(SourcePtr source, PipelineOptions pipeline, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// Begins an epoch, or goes on within one: the next batch is number `first_batch`. Ends what is in progress.
  /// Throws: c10::ValueError – first_batch outside [0, batches_per_epoch()]; no sample of the source can be used
  void start(int64_t epoch, int64_t first_batch = 0);

  /// The next batch, or nothing at the end of the epoch. Begins epoch 0 if start was never called.
  /// Throws: what went wrong in a worker, for the first bad sample in order; the next call goes on with the batch
  /// behind it
  std::optional<Batch> next();

  int64_t batches_per_epoch() const;
  /// Samples in an epoch as they are delivered: without those that drop_last leaves out.
  int64_t samples_per_epoch() const;
  /// Samples in the source.
  int64_t size() const;
  int64_t batch_size() const;
  /// Samples left out of the batches delivered since start() (OnBadSample::skip).
  int64_t skipped() const;
  const LoaderOptions& options() const;

  /// `for (const Batch& batch : loader.epoch(3))`.
  class Epoch;
  Epoch epoch(int64_t number);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// One epoch as a range for a plain loop.
class Loader::Epoch {
 public:
  class Iterator {
   public:
    explicit Iterator(Loader* loader) : loader_(loader) { ++*this; }
    Iterator() = default;
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_.reset();  // its memory can be used for what comes
      batch_ = loader_->next();
      return *this;
    }
    bool operator!=(const Iterator& end) const { return batch_.has_value() != end.batch_.has_value(); }

   private:
    Loader* loader_ = nullptr;
    std::optional<Batch> batch_;
  };

  explicit Epoch(Loader* loader) : loader_(loader) {}
  Iterator begin() { return Iterator(loader_); }
  Iterator end() { return {}; }

 private:
  Loader* loader_;
};

}  // namespace bellows::data
