#pragma once

#include "bellows/data/loader/batch.h"
#include "bellows/data/loader/batch_memory.h"
#include "bellows/data/loader/loader.h"
#include "bellows/data/loader/sample_writer.h"

#include <atomic>
#include <exception>
#include <string>
#include <vector>

namespace bellows::data {

/// What all batches of a loader are made of. It outlives them.
struct JobContext {
  JobContext(const Source& a_source, const SampleWriter& a_writer, const LoaderOptions& some_options,
             BatchMemory& a_memory)
      : source(a_source), writer(a_writer), options(some_options), memory(a_memory) {}

  const Source& source;
  const SampleWriter& writer;
  const LoaderOptions& options;
  BatchMemory& memory;
  std::atomic<int64_t> retries{0};  ///< reads that were tried again
};

/// What was wrong with a sample that its batch comes without.
struct BadSample {
  std::string message;
  LoadStage stage = LoadStage::read;
  int64_t position = -1;  ///< in the source
};

/// One batch while it is being made, and afterwards the next. Slices of it are claimed and filled by different threads;
/// the consumer puts the batch together when all are done.
/// Threads: claim, fill and cancel from any, after begin; the rest by the consumer, `users`, `state` and `completed_ns`
///          under the pool's lock.
class BatchJob {
 public:
  explicit BatchJob(JobContext& context) : context_(context) {}

  /// Takes memory for the rows of `plan`, then the plan: where there is none, `plan` is as it was.
  void begin(BatchPlan&& plan, int64_t slices);
  /// The next slice that nobody has, or -1.
  int64_t claim();
  bool claimable() const { return claimed_.load(std::memory_order_relaxed) < slices_; }
  /// Fills the rows of one slice. Keeps what goes wrong for finish(); never throws.
  /// Returns: whether it was the last one, so that the batch is complete
  bool fill(int64_t slice, Workspace& workspace) noexcept;
  /// Lets slices that are being filled end early; their content does not matter any more.
  void cancel() { cancelled_ = true; }

  /// Throws the error of the first bad sample.
  void check() const;
  /// The batch without its bad samples, once.
  Batch finish();
  /// What the batch is made by, to make it once more.
  BatchPlan take_plan() { return std::move(plan_); }
  /// In order.
  const std::vector<BadSample>& skipped() const { return skipped_; }
  const BatchPlace& place() const { return plan_.place; }
  /// Gives the memory back.
  void clear();

  enum class State : uint8_t { idle, queued, ready, retired };
  State state = State::idle;
  int64_t users = 0;         ///< workers that hold it
  int64_t completed_ns = 0;  ///< when it became ready

 private:
  void fill_rows(size_t begin, size_t end, Workspace& workspace);
  void fill_row(size_t row, Workspace& workspace);
  bool prepare_row(size_t row, Workspace& workspace);
  void read_row(size_t row, Workspace& workspace);
  void wait_to_retry(int64_t attempt) const;
  uint64_t seed(size_t row) const;
  void close_gaps(BatchPlace& place);
  int64_t join_steps(size_t which);
  at::Tensor make_tensor(size_t which, int64_t rows);

  JobContext& context_;
  BatchPlan plan_;
  std::vector<int64_t> ids_;
  std::vector<c10::DataPtr> memory_;                        // one a tensor; where it is padded, from finish() on
  std::vector<std::vector<std::vector<std::byte>>> steps_;  // of padded tensors: their rows, each as long as it is
  std::vector<BadSample> troubles_;                         // one a row; no message where the sample is good
  std::vector<std::exception_ptr> errors_;                  // one a slice
  std::vector<BadSample> skipped_;
  int64_t slices_ = 0;
  std::atomic<int64_t> claimed_{0}, done_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace bellows::data
