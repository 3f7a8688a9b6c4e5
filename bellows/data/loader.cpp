#include "bellows/data/loader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "bellows/core/log.h"
#include "bellows/core/seed.h"
#include "bellows/data/batch_job.h"

namespace bellows::data {

namespace {

constexpr uint64_t kOrderStream = 0x6f72646572;  // keeps the permutation's seed apart from the samples'
constexpr int64_t kMinSlice = 4;                 // samples that are worth a turn of the lock
constexpr int64_t kLoggedSkips = 5;
constexpr int64_t kMaxPrefetch = 65536;
constexpr int64_t kLeadingSamples = 100;  // that are looked at for a typical one

void check(const Source& source, const LoaderOptions& options) {
  TORCH_CHECK_VALUE(options.batch_size > 0, "Loader: expected a batch size of at least 1, got ", options.batch_size,
                    ".");
  TORCH_CHECK_VALUE(options.threads >= 0 && options.threads <= 1024, "Loader: expected 0 to 1024 threads, got ",
                    options.threads, ".");
  TORCH_CHECK_VALUE(options.prefetch >= 1 && options.prefetch <= kMaxPrefetch, "Loader: expected to prefetch 1 to ",
                    kMaxPrefetch, " batches, got ", options.prefetch, ". Use threads = 0 for none.");
  TORCH_CHECK_VALUE(source.size() > 0, "Loader: the source holds no samples: ", source.describe(),
                    ". Check its path and its members' names.");
  TORCH_CHECK_VALUE(!options.drop_last || source.size() >= options.batch_size, "Loader: ", source.size(),
                    " samples make no full batch of ", options.batch_size,
                    ", and drop_last leaves the rest out. Use a smaller batch, or keep the last one.");
}

}  // namespace

class Loader::Impl {
 public:
  Impl(SourcePtr source, PipelineOptions pipeline, LoaderOptions options)
      : source_(std::move(source)), pipeline_(std::move(pipeline)), options_(options) {
    TORCH_CHECK_VALUE(source_, "Loader: expected a source, got null.");
    check(*source_, options_);
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      abandon_jobs();
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void start(int64_t epoch, int64_t first_batch);
  std::optional<Batch> next();

  int64_t samples_per_epoch() const {
    return options_.drop_last ? source_->size() / options_.batch_size * options_.batch_size : source_->size();
  }
  int64_t batches_per_epoch() const { return (samples_per_epoch() - 1) / options_.batch_size + 1; }
  const Source& source() const { return *source_; }
  const LoaderOptions& options() const { return options_; }
  int64_t skipped() const { return skipped_; }

 private:
  using Job = std::shared_ptr<BatchJob>;
  using Lock = std::unique_lock<std::mutex>;

  void learn();
  void start_workers();
  void work();
  void abandon_jobs();
  void schedule();
  Job make_job(int64_t index);
  Job claimable() const;
  void fill_slice(const Job& job, Workspace& workspace, Lock& lock);
  Job take_front();
  void report_skipped(const BatchJob& job);

  const SourcePtr source_;
  const PipelineOptions pipeline_;
  const LoaderOptions options_;

  // Of the consumer alone.
  Workspace workspace_;
  std::unique_ptr<SampleWriter> writer_;
  std::shared_ptr<BatchMemory> memory_;
  std::vector<int64_t> order_;  // empty: the source's
  int64_t epoch_ = 0, next_index_ = 0, skipped_ = 0;
  bool started_ = false;
  std::vector<std::thread> workers_;

  // Shared with the workers, under mutex_.
  std::mutex mutex_;
  std::condition_variable work_, ready_;
  std::deque<Job> jobs_;  // batches being made, in order
  bool stopping_ = false;
};

void Loader::Impl::learn() {
  if (writer_) return;
  std::exception_ptr first_error;
  const auto try_samples = [&](int64_t end, auto may_speak) {
    for (int64_t i = 0; i < end && !writer_; ++i) {
      try {
        source_->read(i, workspace_.sample);
        if (may_speak(workspace_.sample)) writer_ = std::make_unique<SampleWriter>(pipeline_, workspace_);
      } catch (const c10::Error&) {
        if (!first_error) first_error = std::current_exception();
      }
    }
  };
  // A sample that lacks a file must not decide what all the others have.
  if (pipeline_.required.empty()) try_samples(std::min(kLeadingSamples, source_->size()), is_typical);
  try_samples(source_->size(), [](const Sample&) { return true; });
  if (!writer_) std::rethrow_exception(first_error);
  memory_ = std::make_shared<BatchMemory>(static_cast<size_t>(options_.prefetch + 3) * writer_->rows().size());
}

void Loader::Impl::start(int64_t epoch, int64_t first_batch) {
  TORCH_CHECK_VALUE(first_batch >= 0 && first_batch <= batches_per_epoch(),
                    "Loader::start: expected first_batch in [0, ", batches_per_epoch(), "], got ", first_batch,
                    ". An epoch has ", batches_per_epoch(), " batches of ", options_.batch_size, ".");
  learn();
  Lock lock(mutex_);
  abandon_jobs();
  epoch_ = epoch;
  next_index_ = first_batch;
  skipped_ = 0;
  started_ = true;
  if (options_.shuffle)
    order_ = random_permutation(source_->size(), mix_seed(options_.seed, static_cast<uint64_t>(epoch), kOrderStream));
  start_workers();
  if (!workers_.empty()) schedule();
}

void Loader::Impl::start_workers() {
  while (static_cast<int64_t>(workers_.size()) < options_.threads) workers_.emplace_back([this] { work(); });
}

void Loader::Impl::work() {
  Workspace workspace;
  Lock lock(mutex_);
  for (;;) {
    Job job;
    work_.wait(lock, [&] { return stopping_ || (job = claimable()); });
    if (stopping_) return;
    fill_slice(job, workspace, lock);
  }
}

void Loader::Impl::abandon_jobs() {
  for (const Job& job : jobs_) job->cancel();
  jobs_.clear();
}

Loader::Impl::Job Loader::Impl::make_job(int64_t index) {
  const int64_t begin = index * options_.batch_size;
  const int64_t end = begin + std::min(options_.batch_size, samples_per_epoch() - begin);
  std::vector<int64_t> positions;
  for (int64_t i = begin; i < end; ++i) positions.push_back(order_.empty() ? i : order_[static_cast<size_t>(i)]);
  const int64_t most = options_.threads == 0 ? 1 : 4 * (options_.threads + 1);
  const int64_t slices = std::clamp<int64_t>((end - begin) / kMinSlice, 1, most);
  return std::make_shared<BatchJob>(std::move(positions), *writer_, *memory_, slices, epoch_, index);
}

void Loader::Impl::schedule() {
  const size_t ahead = workers_.empty() ? 1 : static_cast<size_t>(options_.prefetch);
  bool added = false;
  while (jobs_.size() < ahead && next_index_ < batches_per_epoch()) {
    jobs_.push_back(make_job(next_index_++));
    added = true;
  }
  if (added) work_.notify_all();
}

Loader::Impl::Job Loader::Impl::claimable() const {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return job->claimable(); });
  return found == jobs_.end() ? nullptr : *found;
}

void Loader::Impl::fill_slice(const Job& job, Workspace& workspace, Lock& lock) {
  const int64_t slice = job->claimed++;
  lock.unlock();
  job->fill(slice, *source_, options_, workspace);
  lock.lock();
  ++job->done;
  if (job->complete()) ready_.notify_one();
}

Loader::Impl::Job Loader::Impl::take_front() {
  Lock lock(mutex_);
  schedule();
  if (jobs_.empty()) return nullptr;
  const Job front = jobs_.front();
  while (!front->complete()) {
    if (front->claimable()) {
      fill_slice(front, workspace_, lock);
    } else {
      ready_.wait(lock);
    }
  }
  jobs_.pop_front();
  if (!workers_.empty()) schedule();
  return front;
}

void Loader::Impl::report_skipped(const BatchJob& job) {
  for (const std::string& trouble : job.skipped()) {
    if (++skipped_ <= kLoggedSkips) log_warn("skipped a bad sample: ", trouble);
    if (skipped_ == kLoggedSkips + 1) log_warn("further bad samples of this epoch are counted, not logged");
  }
}

std::optional<Batch> Loader::Impl::next() {
  if (!started_) start(0, 0);
  while (const Job job = take_front()) {
    Batch batch = job->finish();
    report_skipped(*job);
    if (batch.size() > 0) return batch;
  }
  return std::nullopt;
}

Loader::Loader(SourcePtr source, PipelineOptions pipeline, LoaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(pipeline), options)) {}
Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

void Loader::start(int64_t epoch, int64_t first_batch) {
  impl_->start(epoch, first_batch);
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

Loader::Epoch Loader::epoch(int64_t number) {
  start(number);
  return Epoch(this);
}

}  // namespace bellows::data
