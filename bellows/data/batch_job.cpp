#include "bellows/data/batch_job.h"

#include <ATen/ops/from_blob.h>

#include <cstring>

#include "bellows/core/error.h"

namespace bellows::data {

BatchJob::BatchJob(std::vector<int64_t> positions, const SampleWriter& writer, BatchMemory& memory, int64_t slices,
                   int64_t epoch, int64_t index)
    : writer_(writer), positions_(std::move(positions)), slices_(slices), epoch_(epoch), index_(index) {
  ids_.resize(positions_.size());
  troubles_.resize(positions_.size());
  errors_.resize(static_cast<size_t>(slices));
  for (const RowSpec& row : writer_.rows()) memory_.push_back(memory.take(row.bytes * positions_.size()));
}

void BatchJob::fill(int64_t slice, const Source& source, const LoaderOptions& options, Workspace& workspace) noexcept {
  const size_t rows = positions_.size(), parts = static_cast<size_t>(slices_), part = static_cast<size_t>(slice);
  try {
    for (size_t row = rows * part / parts; row < rows * (part + 1) / parts && !cancelled_; ++row)
      fill_row(row, source, options, workspace);
  } catch (...) {
    errors_[part] = std::current_exception();
  }
}

void BatchJob::fill_row(size_t row, const Source& source, const LoaderOptions& options, Workspace& workspace) {
  ids_[row] = positions_[row];  // until the source says better
  try {
    source.read(positions_[row], workspace.sample);
    ids_[row] = workspace.sample.id;
    writer_.prepare(workspace);
  } catch (const std::exception& error) {
    if (options.on_bad_sample == OnBadSample::fail) throw;
    troubles_[row] = user_message(error);
    return;
  }
  const auto& specs = writer_.rows();
  std::vector<std::byte*>& out = workspace.rows;
  out.resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) out[i] = static_cast<std::byte*>(memory_[i].get()) + row * specs[i].bytes;
  writer_.write(workspace, mix_seed(options.seed, static_cast<uint64_t>(epoch_), static_cast<uint64_t>(ids_[row])),
                out);
}

void BatchJob::close_gaps() {
  size_t kept = 0;
  for (size_t row = 0; row < ids_.size(); ++row) {
    if (!troubles_[row].empty()) {
      skipped_.push_back(std::move(troubles_[row]));
      continue;
    }
    for (size_t i = 0; i < memory_.size() && kept != row; ++i) {
      auto* base = static_cast<std::byte*>(memory_[i].get());
      const size_t bytes = writer_.rows()[i].bytes;
      if (bytes > 0) std::memcpy(base + kept * bytes, base + row * bytes, bytes);
    }
    ids_[kept++] = ids_[row];
  }
  ids_.resize(kept);
}

at::Tensor BatchJob::make_tensor(size_t which, int64_t rows) {
  const RowSpec& row = writer_.rows()[which];
  std::vector<int64_t> sizes{rows};
  sizes.insert(sizes.end(), row.sizes.begin(), row.sizes.end());
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
  if (row.channels_last)
    strides = {row.sizes[0] * row.sizes[1] * row.sizes[2], 1, row.sizes[0] * row.sizes[2], row.sizes[0]};
  c10::DataPtr memory = std::move(memory_[which]);
  void* data = memory.get();
  auto* owner = new c10::DataPtr(std::move(memory));
  return at::for_blob(data, sizes)
      .strides(strides)
      .context(owner, [](void* dead) { delete static_cast<c10::DataPtr*>(dead); })
      .options(at::TensorOptions().dtype(row.dtype))
      .make_tensor();
}

Batch BatchJob::finish() {
  for (const std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(error);
  }
  close_gaps();
  NamedTensors tensors;
  for (size_t i = 0; i < memory_.size(); ++i)
    tensors.emplace_back(writer_.rows()[i].name, make_tensor(i, static_cast<int64_t>(ids_.size())));
  return {std::move(tensors), std::move(ids_), epoch_, index_};
}

}  // namespace bellows::data
