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

/// The inputs that all batches of a loader share. A JobContext outlives the batches.
struct JobContext {
  JobContext(const Source& a_source, const SampleWriter& a_writer, const LoaderOptions& some_options,
             BatchMemory& a_memory)
      : source(a_source), writer(a_writer), options(some_options), memory(a_memory) {}

  const Source& source;
  const SampleWriter& writer;
  const LoaderOptions& options;
  BatchMemory& memory;
  std::atomic<int64_t> retries{0};  ///< number of retried reads
};

/// The error of a sample that was left out of its batch.
struct BadSample {
  std::string message;
  LoadStage stage = LoadStage::read;
  int64_t position = -1;  ///< position in the source
};

/// A batch that is being made. A slice is a range of its rows that one thread fills at a time. Several threads claim
/// slices and fill them. When all slices are filled, the consumer assembles the batch. The object is then reused for
/// another batch.
/// Threads: after begin(), any thread may call claim(), fill() and cancel(). Only the consumer calls the other
///          functions. The lock of the pool protects `users`, `state` and `completed_ns`
class BatchJob {
 public:
  explicit BatchJob(JobContext& context) : context_(context) {}

  /// Allocates memory for the rows of `plan`, then takes ownership of the plan. If the allocation fails, `plan` is
  /// unchanged.
  void begin(BatchPlan&& plan, int64_t slices);
  /// Returns the next unclaimed slice, or -1 if there is none.
  int64_t claim();
  bool claimable() const { return claimed_.load(std::memory_order_relaxed) < slices_; }
  /// Fills the rows of one slice. Stores errors for check() and never throws.
  /// Returns: true if all slices are filled, so that the batch is complete
  bool fill(int64_t slice, Workspace& workspace) noexcept;
  /// Stops running fill() calls early. The content of the batch is then invalid.
  void cancel() { cancelled_ = true; }

  /// Throws the error of the first bad sample.
  void check() const;
  /// Returns the batch without its bad samples. Call it only once.
  Batch finish();
  /// Returns the plan, so that the batch can be made again.
  BatchPlan take_plan() { return std::move(plan_); }
  /// Returns the errors of the skipped samples, in order.
  const std::vector<BadSample>& skipped() const { return skipped_; }
  const BatchPlace& place() const { return plan_.place; }
  /// Releases the memory.
  void clear();

  enum class State : uint8_t { idle, queued, ready, retired };
  State state = State::idle;
  int64_t users = 0;         ///< number of workers that use this object
  int64_t completed_ns = 0;  ///< time at which the batch became ready

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
  std::vector<c10::DataPtr> memory_;  // one block per tensor; for padded tensors, finish() allocates it
  std::vector<std::vector<std::vector<std::byte>>> steps_;  // padded tensors only: the rows, each with its own length
  std::vector<BadSample> troubles_;                         // one per row; the message is empty if the sample is good
  std::vector<std::exception_ptr> errors_;                  // one per slice
  std::vector<BadSample> skipped_;
  int64_t slices_ = 0;
  std::atomic<int64_t> claimed_{0}, done_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace bellows::data
