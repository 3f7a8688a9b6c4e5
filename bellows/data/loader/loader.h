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

/// Selects how next() handles a bad sample. A sample is bad if its image cannot be decoded or a transform rejects the
/// image. It is also bad if a field is missing, an array has the wrong type or size, or the label is invalid or out of
/// range.
///
/// next() always throws these errors, because they are mistakes in the pipeline or in user code:
/// - an image whose size differs from the first image's size
/// - an exception from user code (StepError), except the c10::ValueError by which a transform or a tokenizer rejects a
///   sample
enum class OnBadSample {
  fail,  ///< next() throws
  /// The sample is left out, so the batch is smaller. Skipped samples are counted, and the first few errors are logged.
  skip
};

/// Options for how a loader divides an epoch into batches and how it makes the batches.
struct LoaderOptions {
  // Contents of the batches.
  int64_t batch_size = 32;  ///< batch size per rank
  Remainder remainder = Remainder::uneven;
  OrderPtr order;     ///< null: the order of the source
  uint64_t seed = 0;  ///< seed of the order and of random transforms
  int64_t rank = 0;
  int64_t world_size = 1;  ///< number of ranks that share an epoch
  /// If true, batch_size counts the samples of all ranks together and is divided as equally as possible.
  bool global_batch = false;
  bool fill_in_order = false;  ///< see Division::fill_in_order
  OnBadSample on_bad_sample = OnBadSample::fail;
  int64_t retries = 0;  ///< number of retries after a failed read, with delays of 20 ms, 40 ms, … up to 2 s
  c10::Device device = c10::kCPU;  ///< device of the batches
  // Speed.
  static constexpr int64_t kAuto = -1;
  int64_t threads = 1;   ///< number of worker threads; 0: next() does all the work; kAuto: chosen automatically
  int64_t prefetch = 2;  ///< number of batches that are made in advance; has no effect without worker threads
};

/// Returns the number of batches per rank in an epoch of a loader with these options.
int64_t count_batches(const Source& source, const LoaderOptions& options, int64_t epoch = 0);

/// Makes batches from a source, in advance and in several threads.
///
/// The assignment of samples to batches and all values in a batch are deterministic. They depend only on the source,
/// the pipeline, the order, the seed, the epoch and the rank, not on the number of threads. Workers fill the next
/// batches in order, one slice (a range of rows) at a time. next() helps with the batch that it waits for. If all
/// samples of a batch are skipped, the batch is left out. With several ranks, an empty batch is returned instead, so
/// that all ranks make the same number of steps.
///
/// Batch memory is recycled, so no memory is allocated in the steady state. Batches for an accelerator are made in
/// pinned memory and copied on a separate stream, one batch in advance.
/// Threads: use a loader from one thread only; this thread may destroy or restart the loader at any time
class Loader {
 public:
  /// Throws: c10::ValueError if there are no samples, if there is no full step with Remainder::drop, if an option is
  ///         out of range, or if the order was made for a different source
  Loader(SourcePtr source, PipelineOptions pipeline, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// Starts an epoch, or resumes within an epoch, so that the next batch is batch number `first_batch`. If another
  /// epoch is in progress, it ends.
  /// Throws: c10::ValueError if first_batch is outside [0, number of batches in the epoch] or if no sample of the
  ///         source is usable
  void start(int64_t epoch, int64_t first_batch = 0);
  /// Like start(), but resumes after the first `consumed` samples of the epoch (Batch::consumed). The batch size and
  /// the number of ranks may have been different for these samples. The index of the next batch is consumed /
  /// samples_per_step().
  /// Throws: c10::ValueError if consumed is outside [0, number of samples in the epoch] or if no sample of the source
  ///         is usable
  void start_at(int64_t epoch, int64_t consumed);

  /// Returns the next batch, or nothing at the end of the epoch. Starts epoch 0 if start() was never called.
  /// Throws: the exception of the first bad sample in order; the next call returns the following batch. c10::Error if
  ///         there is no memory for a batch; the next call tries again, and no batch is lost
  std::optional<Batch> next();

  /// Returns the number of batches per rank in the epoch that was started last.
  int64_t batches_per_epoch() const;
  /// Returns the number of samples that all ranks together receive in the epoch that was started last. The number
  /// includes padding, but no dropped samples.
  int64_t samples_per_epoch() const;
  /// Returns the number of samples in the source.
  int64_t size() const;
  int64_t batch_size() const;
  /// Returns the number of samples that were left out of the batches since start() (OnBadSample::skip).
  int64_t skipped() const;
  const LoaderOptions& options() const;

  /// Reports where the loader spent its time since it was created, and which change would help most.
  /// Cost: a few milliseconds. Measuring takes less than 1 % of the loader's work
  LoaderReport report() const;
  /// Returns the share of the time since start() that next() spent waiting for a batch, for example for a progress bar.
  double wait_share() const;
  /// Starts recording a trace. The trace contains the work of the workers and of next(), and the number of batches in
  /// the queue. If `writer` is null, ends the recording.
  /// Cost: 2 µs per stage of each timed sample
  void trace(std::shared_ptr<TraceWriter> writer);

  /// Starts an epoch and returns it as a range: `for (const Batch& batch : loader.epoch(3))`.
  class Epoch;
  Epoch epoch(int64_t number) &;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// One epoch as a range for a range-based for loop.
class Loader::Epoch {
 public:
  class Iterator {
   public:
    explicit Iterator(Loader* loader) : loader_(loader) { ++*this; }
    Iterator() = default;
    Batch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_.reset();  // lets the next batch reuse its memory
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
