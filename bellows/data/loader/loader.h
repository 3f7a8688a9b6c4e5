#pragma once

#include "bellows/data/loader/batch.h"
#include "bellows/data/loader/pipeline.h"
#include "bellows/data/loader/report.h"
#include "bellows/data/order/epoch_plan.h"
#include "bellows/data/source.h"

#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace bellows::data {

/// What to do with a sample that cannot be used: an image that does not decode or that a transform refuses, a missing
/// field, an array of another type or size, a bad or out-of-range label. Pictures of other sizes than the first are the
/// pipeline's mistake, and always an error. So is what steps of the user's own throw (StepError), but for the
/// c10::ValueError by which a transform or a tokenizer refuses a sample.
enum class OnBadSample {
  fail,  ///< next() throws
  skip   ///< the batch comes without it, smaller; counted, and the first few are logged
};

/// How a loader cuts an epoch into batches and makes them.
struct LoaderOptions {
  // What comes out.
  int64_t batch_size = 32;  ///< of each rank
  Remainder remainder = Remainder::uneven;
  OrderPtr order;     ///< null: the source's own
  uint64_t seed = 0;  ///< of the order and of random transforms
  int64_t rank = 0;
  int64_t world_size = 1;    ///< processes that share an epoch
  bool share_batch = false;  ///< batch_size is that of all ranks together, who share it as equally as they can
  OnBadSample on_bad_sample = OnBadSample::fail;
  int64_t retries = 0;             ///< of a read that fails, 20 ms later, then 40, … up to 2 s
  c10::Device device = c10::kCPU;  ///< where batches are handed out
  // How fast.
  static constexpr int64_t kAuto = -1;
  int64_t threads = 1;   ///< workers beside the caller; 0: all work is done in next(); kAuto: as many as help
  int64_t prefetch = 2;  ///< batches made ahead; without threads none are
};

/// Batches of each rank in an epoch, as a loader with these options would give them.
int64_t count_batches(const Source& source, const LoaderOptions& options, int64_t epoch = 0);

/// Makes batches from a source, ahead of time and in several threads.
///
/// Which samples form which batch, and each value in it, is a pure function of (source, pipeline, order, seed, epoch,
/// rank): the number of threads changes nothing. Workers take slices of the next batches in order; next() helps with
/// the batch that it waits for. A batch whose samples are all skipped is left out; with several ranks it comes empty, so
/// that all make the same number of steps. Batch memory is recycled: no allocation of it once the loop is going. Batches
/// for an accelerator are made in pinned memory and copied on a stream of their own, one ahead.
/// Threads:  one thread uses a loader; it may be destroyed, or started anew, at any moment.
class Loader {
 public:
  /// Throws: c10::ValueError – no samples, no full step with Remainder::drop, options out of range, an order made for
  ///         another source
  Loader(SourcePtr source, PipelineOptions pipeline, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// Begins an epoch, or goes on within one: the next batch is number `first_batch`. Ends what is in progress.
  /// Throws: c10::ValueError – first_batch outside [0, batches_per_epoch()]; no sample of the source can be used
  void start(int64_t epoch, int64_t first_batch = 0);
  /// As start, behind the first `consumed` samples of the epoch, which other ranks in other batches may have taken
  /// (Batch::consumed). Batches are counted from consumed / samples_per_step().
  /// Throws: c10::ValueError – consumed outside [0, samples of the epoch]; no sample of the source can be used
  void start_at(int64_t epoch, int64_t consumed);

  /// The next batch, or nothing at the end of the epoch. Begins epoch 0 if start was never called.
  /// Throws: what went wrong in a worker, for the first bad sample in order; the next call goes on with the batch
  /// behind it. c10::Error – no memory for a batch; the next call tries again, and none is lost
  std::optional<Batch> next();

  /// Of each rank, in the epoch that was started last.
  int64_t batches_per_epoch() const;
  /// Samples of that epoch as they are delivered to all ranks: without what is dropped, with what is padded.
  int64_t samples_per_epoch() const;
  /// Samples in the source.
  int64_t size() const;
  int64_t batch_size() const;
  /// Samples left out of the batches delivered since start() (OnBadSample::skip).
  int64_t skipped() const;
  const LoaderOptions& options() const;

  /// Where the time went since the loader was made, and what would help most.
  /// Cost: some milliseconds; measuring itself is below 1 % of a loader's work
  LoaderReport report() const;
  /// Share of the time since start() in which next() waited for a batch: for a progress bar.
  double wait_share() const;
  /// Draws what workers and next() do, and the queue, into a trace from now on; null ends that.
  /// Cost: 2 µs a stage of each timed sample
  void trace(std::shared_ptr<TraceWriter> writer);

  /// `for (const Batch& batch : loader.epoch(3))`.
  class Epoch;
  Epoch epoch(int64_t number) &;

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
