#pragma once

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <unordered_set>

#include "bellows/data/loader/loader.h"
#include "bellows/data/loader/loader_meter.h"
#include "bellows/data/loader/read_ahead.h"
#include "bellows/data/loader/transfer.h"
#include "bellows/data/loader/worker_pool.h"

namespace bellows::data {

class Loader::Impl {
 public:
  Impl(SourcePtr source, PipelineOptions pipeline, LoaderOptions options);

  void start(int64_t epoch, int64_t first_batch);
  void start_at(int64_t epoch, int64_t first_batch, int64_t consumed);
  std::optional<Batch> next();

  int64_t samples_per_epoch() const;
  int64_t batches_per_epoch() const { return count_batches(*source_, options_, epoch_); }
  const Source& source() const { return *source_; }
  const LoaderOptions& options() const { return options_; }
  int64_t skipped() const { return skipped_; }
  LoaderReport report() const;
  double wait_share() const { return meter_.wait_share(); }
  void trace(std::shared_ptr<TraceWriter> writer);

 private:
  /// What next() gives, here or on its way to a device: a batch, an error, or the end.
  struct Outcome {
    std::optional<Batch> batch;
    std::exception_ptr error;
    int64_t completed_ns = 0, taken_ns = 0;  // when the batch was finished, and when next() had it
    int64_t skipped = 0;                     // up to here
  };

  void learn();
  void make_pool();
  void schedule();
  void schedule_if_possible(bool has_one);
  BatchPlan* next_plan();
  BatchJob* take_job();
  Outcome make();
  Batch finish(BatchJob& job);
  Outcome fly();
  void send(Outcome outcome);
  void note_skipped(const BatchJob& job);
  void report_repeated();
  void adjust_threads();

  const SourcePtr source_;
  const PipelineOptions pipeline_;
  const LoaderOptions options_;

  Workspace workspace_;
  std::unique_ptr<SampleWriter> writer_;
  std::shared_ptr<BatchMemory> memory_;
  std::optional<EpochPlan> plan_;
  std::deque<BatchPlan> planned_;        // known to read-ahead, not yet to the workers
  std::optional<BatchPlan> unfinished_;  // of a batch that there was no memory to hand out
  int64_t epoch_ = 0, skipped_ = 0;
  int64_t next_step_ = 0;    // of the plan
  int64_t first_batch_ = 0;  // number of the plan's first
  bool started_ = false;
  LoaderMeter meter_;
  std::optional<ThreadBudget> budget_;  // threads = kAuto
  StageSums last_sums_;                 // of the workers, when it decided last
  std::array<int64_t, kLoadStages> skipped_in_{};
  int64_t all_skipped_ = 0, noted_ = 0;    // of all epochs; of this one, those on their way included
  std::unordered_set<int64_t> known_bad_;  // positions of samples that were skipped before, in any epoch
  int64_t new_bad_ = 0, repeated_ = 0;     // of noted_: first skipped in this epoch; known, and not yet reported
  int64_t picture_bytes_ = 0;
  std::optional<JobContext> context_;
  std::unique_ptr<Transfer> transfer_;
  std::deque<Outcome> sent_;       // one for each copy in progress, and for what failed
  std::optional<Outcome> unsent_;  // there was no memory for it on the device
  std::shared_ptr<TraceWriter> trace_;
  std::unique_ptr<ReadAhead> read_ahead_;
  std::unique_ptr<WorkerPool> pool_;  // ends first
};

}  // namespace bellows::data
