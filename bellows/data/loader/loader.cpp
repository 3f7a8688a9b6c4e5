#include "bellows/data/loader/loader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include "bellows/core/log.h"
#include "bellows/data/loader/loader_meter.h"
#include "bellows/data/loader/read_ahead.h"
#include "bellows/data/loader/transfer.h"
#include "bellows/data/loader/worker_pool.h"
#include "bellows/data/picture.h"
#include "bellows/data/step_error.h"
#include "bellows/io/images/image.h"
#include "bellows/system/machine.h"
#include "bellows/system/stop.h"

namespace bellows::data {

namespace {

constexpr int64_t kMinSlice = 4;            // samples, enough to be worth taking the lock
constexpr int64_t kLoggedSkips = 5;         // per epoch
constexpr size_t kKnownBadSamples = 65536;  // memory limit; later bad samples are only counted
constexpr int64_t kMaxPrefetch = 65536;
constexpr int64_t kLeadingSamples = 100;  // searched for a typical sample

Division division(const LoaderOptions& options) {
  return {options.batch_size, options.rank,         options.world_size,
          options.remainder,  options.global_batch, options.fill_in_order};
}

constexpr int64_t kMostMultiple = 1 << 20;

void check(const PipelineOptions& pipeline) {
  for (const Padding& padding : pipeline.padding) {
    TORCH_CHECK_VALUE(padding.multiple_of >= 1 && padding.multiple_of <= kMostMultiple, "pad: expected \"",
                      padding.field, "\" to be padded to a multiple of 1 to ", kMostMultiple, ", got ",
                      padding.multiple_of, ".");
  }
}

void check(const Source& source, const LoaderOptions& options) {
  check_division("Loader", division(options));
  TORCH_CHECK_VALUE(options.threads == LoaderOptions::kAuto || (options.threads >= 0 && options.threads <= 1024),
                    "Loader: expected 0 to 1024 threads, got ", options.threads, ".");
  TORCH_CHECK_VALUE(options.retries >= 0, "Loader: expected at least 0 retries, got ", options.retries, ".");
  TORCH_CHECK_VALUE(options.prefetch >= 1 && options.prefetch <= kMaxPrefetch, "Loader: expected to prefetch 1 to ",
                    kMaxPrefetch, " batches, got ", options.prefetch,
                    ". To load batches on the calling thread, set threads = 0.");
  TORCH_CHECK_VALUE(source.size() > 0, "Loader: the source contains no samples: ", source.describe(),
                    ". Check the path and the file names.");
  TORCH_CHECK_VALUE(count_batches(source, options) > 0, "Loader: ", options.order->length(source, 0),
                    " samples are not enough for a full batch of ", options.batch_size,
                    options.global_batch ? " over " : " on each of ", options.world_size,
                    " ranks, and incomplete batches are dropped. Use a smaller batch, or keep incomplete batches.");
}

/// Size of the sample's decoded image in the cache; 0 if it has no image that needs decoding.
int64_t decoded_bytes(const Sample& sample, const PipelineOptions& pipeline) {
  const Field* picture = find_picture(sample);
  if (!picture || picture->is_array) return 0;
  return io::image_info(picture->bytes).bytes_as(pipeline.decode == "gray" ? io::ColorMode::gray : io::ColorMode::rgb);
}

LoaderOptions with_order(LoaderOptions options) {
  if (!options.order) options.order = sequential();
  return options;
}

}  // namespace

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
  /// The result of next(), ready or in transfer to a device: a batch, an error, or the end.
  struct Outcome {
    std::optional<Batch> batch;
    std::exception_ptr error;
    int64_t completed_ns = 0, taken_ns = 0;  // when the batch was finished, and when next() received it
    int64_t skipped = 0;                     // up to this batch
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
  std::deque<BatchPlan> planned_;        // known to read-ahead, but not yet to the workers
  std::optional<BatchPlan> unfinished_;  // of a batch that failed for lack of memory
  int64_t epoch_ = 0, skipped_ = 0;
  int64_t next_step_ = 0;    // in the plan
  int64_t first_batch_ = 0;  // index of the plan's first batch
  bool started_ = false;
  LoaderMeter meter_;
  std::optional<ThreadBudget> budget_;  // if threads = kAuto
  StageSums last_sums_;                 // of the workers, at its last decision
  std::array<int64_t, kLoadStages> skipped_in_{};
  int64_t all_skipped_ = 0, noted_ = 0;    // of all epochs; of this epoch, including batches in transfer
  std::unordered_set<int64_t> known_bad_;  // positions of samples that were skipped in any epoch
  int64_t new_bad_ = 0, repeated_ = 0;     // parts of noted_: first skipped in this epoch; known, but not yet reported
  int64_t reported_repeats_ = 0;           // the number that was last logged
  int64_t picture_bytes_ = 0;
  std::optional<JobContext> context_;
  std::unique_ptr<Transfer> transfer_;
  std::deque<Outcome> sent_;       // one per copy in progress, and per error
  std::optional<Outcome> unsent_;  // failed for lack of memory on the device
  std::shared_ptr<TraceWriter> trace_;
  std::unique_ptr<ReadAhead> read_ahead_;
  std::unique_ptr<WorkerPool> pool_;  // destroyed first
};

int64_t count_batches(const Source& source, const LoaderOptions& options, int64_t epoch) {
  const int64_t samples = options.order ? options.order->length(source, epoch) : source.size();
  return count_batches(samples, division(options));
}

Loader::Impl::Impl(SourcePtr source, PipelineOptions pipeline, LoaderOptions options)
    : source_(std::move(source)), pipeline_(std::move(pipeline)), options_(with_order(std::move(options))) {
  TORCH_CHECK_VALUE(source_, "Loader: expected a source, got null.");
  check(pipeline_);
  check(*source_, options_);
}

int64_t Loader::Impl::samples_per_epoch() const {
  return count_delivered(options_.order->length(*source_, epoch_), division(options_));
}

void Loader::Impl::learn() {
  if (writer_) return;
  std::exception_ptr first_error;
  const auto try_samples = [&](int64_t end, auto may_speak) {
    for (int64_t i = 0; i < end && !writer_; ++i) {
      try {
        source_->read(i, workspace_.sample);
        if (may_speak(workspace_.sample)) writer_ = std::make_unique<SampleWriter>(pipeline_, workspace_);
      } catch (const StepError&) {
        throw;
      } catch (const Stopped&) {
        throw;
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
    }
  };
  // A sample that lacks a file must not determine the tensors of all batches.
  if (pipeline_.required.empty()) try_samples(std::min(kLeadingSamples, source_->size()), is_typical);
  try_samples(source_->size(), [](const Sample&) { return true; });
  if (!writer_) std::rethrow_exception(first_error);
  picture_bytes_ = decoded_bytes(workspace_.sample, pipeline_);
  make_pool();
}

void Loader::Impl::make_pool() {
  const int64_t held = options_.prefetch + 3 + (options_.device.is_cpu() ? 0 : 2);
  memory_ = std::make_shared<BatchMemory>(static_cast<size_t>(held) * writer_->rows().size(),
                                          Transfer::host_allocator(options_.device));
  if (!options_.device.is_cpu()) transfer_ = std::make_unique<Transfer>(options_.device);
  context_.emplace(*source_, *writer_, options_, *memory_);
  pool_ = std::make_unique<WorkerPool>(*context_);
  if (options_.threads == LoaderOptions::kAuto) budget_.emplace(usable_cores());
  pool_->resize(budget_ ? budget_->threads() : options_.threads);
  if (options_.threads != 0 && ReadAhead::helps(*source_)) read_ahead_ = std::make_unique<ReadAhead>(source_);
  if (trace_) pool_->trace(trace_);
}

void Loader::Impl::start(int64_t epoch, int64_t first_batch) {
  const int64_t batches = count_batches(*source_, options_, epoch), samples = options_.order->length(*source_, epoch);
  TORCH_CHECK_VALUE(first_batch >= 0 && first_batch <= batches, "Loader::start: expected first_batch in [0, ", batches,
                    "], got ", first_batch, ". Epoch ", epoch, " has ", batches, " batches of ", options_.batch_size,
                    ".");
  const bool full = first_batch < batches || options_.remainder == Remainder::drop;
  start_at(epoch, first_batch, full ? first_batch * samples_per_step(division(options_)) : samples);
}

void Loader::Impl::start_at(int64_t epoch, int64_t first_batch, int64_t consumed) {
  const int64_t began_ns = now_ns();
  report_repeated();  // of an unfinished epoch
  learn();
  started_ = true;
  pool_->abandon();
  if (read_ahead_) read_ahead_->clear();
  if (transfer_) transfer_->abandon();
  sent_.clear();
  unsent_.reset();
  planned_.clear();
  unfinished_.reset();
  plan_.reset();  // free it before creating the next: each may hold many samples
  plan_.emplace(*source_, *options_.order, options_.seed, epoch, division(options_), consumed);
  epoch_ = epoch;
  next_step_ = 0;
  first_batch_ = first_batch;
  skipped_ = noted_ = new_bad_ = 0;
  if (pool_->threads() > 0) schedule_if_possible(true);
  meter_.start(began_ns);
}

/// The next plan to schedule, or null.
BatchPlan* Loader::Impl::next_plan() {
  const size_t known = read_ahead_ ? 2 * static_cast<size_t>(options_.prefetch) + 1 : 1;
  while (plan_ && planned_.size() < known && next_step_ < plan_->batches()) {
    planned_.push_back(plan_->batch(next_step_));
    planned_.back().place.index += first_batch_;
    ++next_step_;
    if (read_ahead_) read_ahead_->add(planned_.back().positions);
  }
  return planned_.empty() ? nullptr : &planned_.front();
}

/// Schedules the next batches for the workers. If memory runs out, the plans are kept.
void Loader::Impl::schedule() {
  const int64_t ahead = pool_->threads() == 0 ? 1 : options_.prefetch;
  const int64_t threads = budget_ ? budget_->most() : options_.threads;
  for (int64_t missing = ahead - pool_->size(); missing > 0; --missing) {
    BatchPlan* const plan = next_plan();
    if (!plan) return;
    const auto rows = static_cast<int64_t>(plan->positions.size());
    const int64_t most = threads == 0 ? 1 : 4 * (threads + 1);
    pool_->push(std::move(*plan), std::clamp<int64_t>(rows / kMinSlice, 1, most));
    planned_.pop_front();
  }
}

/// Reports the out-of-memory error only after the finished batches are consumed.
void Loader::Impl::schedule_if_possible(bool has_one) {
  try {
    schedule();
  } catch (...) {
    if (!has_one && pool_->size() == 0) throw;
  }
}

/// Returns the next batch from the workers, or null.
BatchJob* Loader::Impl::take_job() {
  schedule_if_possible(unfinished_.has_value());
  if (!unfinished_) return pool_->take(workspace_);
  BatchJob& again = pool_->make(std::move(*unfinished_), workspace_);
  unfinished_.reset();
  return &again;
}

void Loader::Impl::note_skipped(const BatchJob& job) {
  for (const BadSample& bad : job.skipped()) {
    ++skipped_in_[static_cast<size_t>(bad.stage)];
    ++all_skipped_;
    ++noted_;
    if (known_bad_.size() >= kKnownBadSamples || !known_bad_.insert(bad.position).second) {
      ++repeated_;
      continue;
    }
    if (++new_bad_ <= kLoggedSkips) log_warn("skipped a bad sample: ", bad.message);
    if (new_bad_ == kLoggedSkips + 1) log_warn("further bad samples of this epoch are counted, but not logged");
  }
}

/// Logs one line for samples that an earlier epoch also skipped, unless their number equals the last reported one.
void Loader::Impl::report_repeated() {
  const int64_t count = std::exchange(repeated_, 0);
  if (count == 0 || count == std::exchange(reported_repeats_, count)) return;
  log_warn("epoch ", epoch_, ": ", count, count == 1 ? " damaged sample" : " damaged samples",
           " skipped (already reported)");
}

Batch Loader::Impl::finish(BatchJob& job) {
  const auto give_back = [this](BatchJob* finished) { pool_->release(*finished); };
  const std::unique_ptr<BatchJob, decltype(give_back)> hold(&job, give_back);
  job.check();
  const int64_t begin = now_ns();
  Batch batch;
  try {
    batch = job.finish();
  } catch (const c10::ValueError&) {
    throw;
  } catch (...) {  // no memory
    unfinished_.emplace(job.take_plan());
    throw;
  }
  meter_.add(LoadStage::hand_over, now_ns() - begin, batch.size());
  note_skipped(job);
  return batch;
}

/// Makes the next batch. Errors are stored in the result, because it may be returned by a later call.
Loader::Impl::Outcome Loader::Impl::make() {
  Outcome outcome;
  try {
    while (!outcome.batch) {
      BatchJob* const job = take_job();
      outcome.taken_ns = now_ns();
      if (!job) {
        report_repeated();
        break;
      }
      outcome.completed_ns = job->completed_ns;
      if (pool_->threads() > 0) schedule_if_possible(true);
      Batch batch = finish(*job);
      if (batch.size() > 0 || options_.world_size > 1) outcome.batch = std::move(batch);
    }
  } catch (...) {
    outcome.error = std::current_exception();
  }
  outcome.skipped = noted_;
  return outcome;
}

void Loader::Impl::send(Outcome outcome) {
  if (outcome.batch) {
    const int64_t begin = now_ns(), size = outcome.batch->size();
    try {
      transfer_->begin(std::move(*outcome.batch));
    } catch (...) {  // no memory on the device: the next call tries again
      unsent_.emplace(std::move(outcome));
      outcome = {.skipped = unsent_->skipped};
      outcome.error = std::current_exception();
    }
    meter_.add(LoadStage::transfer, now_ns() - begin, size);
  }
  sent_.push_back(std::move(outcome));
}

/// Returns the batch whose copy started one call ago; starts the copy of the next one if it is finished.
Loader::Impl::Outcome Loader::Impl::fly() {
  if (sent_.empty()) send(unsent_ ? *std::exchange(unsent_, std::nullopt) : make());
  Outcome outcome = std::move(sent_.front());
  sent_.pop_front();
  if (!outcome.batch) return outcome;
  outcome.batch = transfer_->finish();
  if (sent_.empty() && pool_->front_ready()) send(make());
  return outcome;
}

std::optional<Batch> Loader::Impl::next() {
  if (!started_) start(0, 0);
  const int64_t ready = pool_->ready();
  meter_.enter(ready);
  const double begin_us = trace_ ? trace_now_us() : 0;
  Outcome outcome = transfer_ ? fly() : make();
  meter_.taken(outcome.taken_ns, outcome.completed_ns);
  skipped_ = outcome.skipped;
  const bool over = !outcome.batch && !outcome.error;
  meter_.leave(over ? -1 : outcome.batch ? outcome.batch->size() : 0, pool_->threads());
  if (trace_) {
    trace_->counter("loader: batches ready", begin_us, static_cast<double>(ready));
    trace_->add({"next", "data", begin_us, trace_now_us() - begin_us, 0, ""});
  }
  adjust_threads();
  if (outcome.error) std::rethrow_exception(outcome.error);
  return std::move(outcome.batch);
}

void Loader::Impl::adjust_threads() {
  BudgetWindow window;
  if (!budget_ || !meter_.take_window(window)) return;
  StageSums now;
  pool_->add_to(now);
  window.busy_s = 1e-9 * static_cast<double>(now.busy_ns - last_sums_.busy_ns);
  window.blocked_share = now.blocked_share(last_sums_);
  last_sums_ = now;
  pool_->resize(budget_->update(window));
}

void Loader::Impl::trace(std::shared_ptr<TraceWriter> writer) {
  trace_ = std::move(writer);
  if (pool_) pool_->trace(trace_);
}

LoaderReport Loader::Impl::report() const {
  LoaderReport report;
  meter_.fill(report);
  StageSums sums;
  workspace_.clock.add_to(sums);
  meter_.add_to(sums);
  if (pool_) pool_->add_to(sums);
  fill(report, sums);
  report.prefetch = options_.prefetch;
  report.threads = pool_ ? pool_->threads() : 0;
  report.auto_threads = options_.threads == LoaderOptions::kAuto;
  report.cores = usable_cores();
  report.read_ahead_s = read_ahead_ ? read_ahead_->seconds() : 0;
  report.skipped = all_skipped_;
  report.skipped_in = skipped_in_;
  report.retries = context_ ? context_->retries.load() : 0;
  report.source_samples = source_->size();
  report.picture_bytes = static_cast<double>(picture_bytes_);
  report.stored = source_->stored();
  report.cached = pipeline_.cache_bytes > 0;
  report.memory_available_bytes = this_machine().memory_available_bytes;
  return report;
}

Loader::Loader(SourcePtr source, PipelineOptions pipeline, LoaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(pipeline), std::move(options))) {}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

void Loader::start(int64_t epoch, int64_t first_batch) {
  impl_->start(epoch, first_batch);
}
void Loader::start_at(int64_t epoch, int64_t consumed) {
  impl_->start_at(epoch, consumed / samples_per_step(division(impl_->options())), consumed);
}
std::optional<Batch> Loader::next() {
  return impl_->next();
}
int64_t Loader::batches_per_epoch() const {
  return impl_->batches_per_epoch();
}
int64_t Loader::samples_per_epoch() const {
  return impl_->samples_per_epoch();
}
int64_t Loader::size() const {
  return impl_->source().size();
}
int64_t Loader::batch_size() const {
  return impl_->options().batch_size;
}
int64_t Loader::skipped() const {
  return impl_->skipped();
}
const LoaderOptions& Loader::options() const {
  return impl_->options();
}

LoaderReport Loader::report() const {
  return impl_->report();
}
double Loader::wait_share() const {
  return impl_->wait_share();
}
void Loader::trace(std::shared_ptr<TraceWriter> writer) {
  impl_->trace(std::move(writer));
}

Loader::Epoch Loader::epoch(int64_t number) & {
  start(number);
  return Epoch(this);
}

}  // namespace bellows::data
