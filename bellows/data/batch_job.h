#pragma once

#include "bellows/data/batch.h"
#include "bellows/data/batch_memory.h"
#include "bellows/data/loader.h"
#include "bellows/data/sample_writer.h"

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// One batch while it is being made. Slices of it are filled by different threads, each slice by one; the batch is put
/// together by the consumer when all are done. Whoever owns `claimed` and `done` guards them: they belong to the
/// loader's lock.
class BatchJob {
 public:
  /// Params: positions – in the source, one a row
  BatchJob(std::vector<int64_t> positions, const SampleWriter& writer, BatchMemory& memory, int64_t slices,
           int64_t epoch, int64_t index);

  /// Fills the rows of one slice. Keeps what goes wrong for finish(); never throws.
  void fill(int64_t slice, const Source& source, const LoaderOptions& options, Workspace& workspace) noexcept;
  /// Lets slices that are being filled end early; their content does not matter any more.
  void cancel() { cancelled_ = true; }

  /// The batch without its skipped samples. Throws the error of the first bad sample.
  Batch finish();
  /// What was wrong with each skipped sample, in order.
  const std::vector<std::string>& skipped() const { return skipped_; }

  bool claimable() const { return claimed < slices_; }
  bool complete() const { return done == slices_; }

  int64_t claimed = 0, done = 0;

 private:
  void fill_row(size_t row, const Source& source, const LoaderOptions& options, Workspace& workspace);
  void close_gaps();
  at::Tensor make_tensor(size_t which, int64_t rows);

  const SampleWriter& writer_;
  std::vector<int64_t> positions_, ids_;
  std::vector<c10::DataPtr> memory_;        // one a tensor
  std::vector<std::string> troubles_;       // one a row; "" where the sample is good
  std::vector<std::exception_ptr> errors_;  // one a slice
  std::vector<std::string> skipped_;
  int64_t slices_, epoch_, index_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace bellows::data
