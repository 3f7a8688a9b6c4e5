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

/// How to handle a bad sample: an image that cannot be decoded or that a transform rejects, a missing field, an array
/// of another type or size, a bad or out-of-range label. Images whose size differs from the first one's are a mistake
/// in the pipeline and always an error. Exceptions from user code (StepError) are always errors, too, except the
/// c10::ValueError by which a transform or a tokenizer rejects a sample.
enum class OnBadSample {
  fail,  ///< next() throws
  skip   ///< the batch omits the sample and is smaller; skipped samples are counted, and the first few are logged
};

/// How a loader divides an epoch into batches and makes them.
struct LoaderOptions {
  // Contents of the batches.
  int64_t batch_size = 32;  ///< per rank
  Remainder remainder = Remainder::uneven;
  OrderPtr order;     ///< null: the source's order
  uint64_t seed = 0;  ///< of the order and of random transforms
  int64_t rank = 0;
  int64_t world_size = 1;     ///< number of processes that share an epoch
  bool global_batch = false;  ///< if true, batch_size is that of all ranks together, divided as equally as possible
  OnBadSample on_bad_sample = OnBadSample::fail;
  int64_t retries = 0;             ///< of a failed read, after 20 ms, 40 ms, … up to 2 s
  c10::Device device = c10::kCPU;  ///< device of the batches
  // Speed.
  static constexpr int64_t kAuto = -1;
  int64_t threads = 1;   ///< workers besides the caller; 0: next() does all the work; kAuto: chosen automatically
  int64_t prefetch = 2;  ///< batches made in advance; has no effect without threads
};

/// Number of batches per rank in an epoch of a loader with these options.
int64_t count_batches(const Source& source, const LoaderOptions& options, int64_t epoch = 0);

/// Makes batches from a source, in advance and in several threads.
///
/// The assignment of samples to batches, and each value in a batch, is a pure function of (source, pipeline, order,
/// seed, epoch, rank). It does not depend on the number of threads. Workers take slices of the next batches in order;
/// next() helps with the batch that it waits for. If all samples of a batch are skipped, the batch is omitted. With
/// several ranks, an empty batch is returned instead, so that all ranks make the same number of steps.
///
/// Batch memory is recycled, so the steady state allocates none. Batches for an accelerator are made in pinned memory
/// and copied on a separate stream, one batch ahead.
/// Threads: one thread uses a loader; it may destroy or restart it at any time
class Loader {
 public:
  /// Throws: c10::ValueError if there are no samples, if there is no full step with Remainder::drop, if an option is
  ///         out of range, or if the order was made for another source
  Loader(SourcePtr source, PipelineOptions pipeline, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// Starts an epoch, or resumes within one: the next batch is number `first_batch`. Stops the epoch in progress.
  /// Throws: c10::ValueError if first_batch is outside [0, batches_per_epoch()] or if no sample of the source is usable
  void start(int64_t epoch, int64_t first_batch = 0);
  /// Like start(), but resumes after the first `consumed` samples of the epoch. Other ranks may have taken them in
  /// other batches (Batch::consumed). The batch index starts at consumed / samples_per_step().
  /// Throws: c10::ValueError if consumed is outside [0, samples of the epoch] or if no sample of the source is usable
  void start_at(int64_t epoch, int64_t consumed);

  /// Returns the next batch, or nothing at the end of the epoch. Starts epoch 0 if start was never called.
  /// Throws: the exception of the first bad sample in order; the next call continues with the following batch.
  ///         c10::Error if there is no memory for a batch; the next call tries again, and no batch is lost
  std::optional<Batch> next();

  /// Per rank, in the epoch that was started last.
  int64_t batches_per_epoch() const;
  /// Samples of that epoch that all ranks together receive: without dropped samples, with padding.
  int64_t samples_per_epoch() const;
  /// Samples in the source.
  int64_t size() const;
  int64_t batch_size() const;
  /// Samples left out of the batches returned since start() (OnBadSample::skip).
  int64_t skipped() const;
  const LoaderOptions& options() const;

  /// Where the time went since the loader was created, and which change would help most.
  /// Cost: a few milliseconds; the measuring takes less than 1 % of a loader's work
  LoaderReport report() const;
  /// Share of the time since start() that next() spent waiting for a batch; for a progress bar.
  double wait_share() const;
  /// From now on, records the work of the workers and of next(), and the queue, in a trace. Null stops it.
  /// Cost: 2 µs per stage of each timed sample
  void trace(std::shared_ptr<TraceWriter> writer);

  /// `for (const Batch& batch : loader.epoch(3))`.
  class Epoch;
  Epoch epoch(int64_t number) &;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// One epoch as a range, for a range-based for loop.
class Loader::Epoch {
 public:
  class Iterator {
   public:
    explicit Iterator(Loader* loader) : loader_(loader) { ++*this; }
    Iterator() = default;
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_.reset();  // so that the next batch can reuse its memory
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
