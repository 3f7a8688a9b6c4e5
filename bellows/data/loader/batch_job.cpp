#include "bellows/data/loader/batch_job.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "bellows/core/seed.h"
#include "bellows/data/step_error.h"

namespace bellows::data {

namespace {

constexpr std::chrono::milliseconds kFirstRetry{20}, kLongestRetry{2000}, kRetryPatience{5};

}  // namespace

void BatchJob::begin(BatchPlan&& plan, int64_t slices) {
  const size_t rows = plan.positions.size();
  ids_.resize(rows);
  for (BadSample& trouble : troubles_) trouble.message.clear();
  troubles_.resize(rows);
  errors_.assign(static_cast<size_t>(slices), nullptr);
  skipped_.clear();
  memory_.clear();
  for (const RowSpec& row : context_.writer.rows()) memory_.push_back(context_.memory.take(row.bytes * rows));
  slices_ = slices;
  claimed_ = done_ = 0;
  cancelled_ = false;
  plan_ = std::move(plan);
}

void BatchJob::clear() {
  memory_.clear();
  errors_.clear();
}

int64_t BatchJob::claim() {
  const int64_t slice = claimed_.fetch_add(1, std::memory_order_relaxed);
  return slice < slices_ ? slice : -1;
}

bool BatchJob::fill(int64_t slice, Workspace& workspace) noexcept {
  const size_t rows = ids_.size(), parts = static_cast<size_t>(slices_), part = static_cast<size_t>(slice);
  const size_t begin = rows * part / parts, end = rows * (part + 1) / parts;
  workspace.clock.begin_slice();
  try {
    fill_rows(begin, end, workspace);
  } catch (...) {
    errors_[part] = std::current_exception();
  }
  workspace.clock.end_slice(static_cast<int64_t>(end - begin));
  return done_.fetch_add(1, std::memory_order_acq_rel) + 1 == slices_;
}

void BatchJob::fill_rows(size_t begin, size_t end, Workspace& workspace) {
  for (size_t row = begin; row < end && !cancelled_; ++row) {
    workspace.clock.begin_sample();
    fill_row(row, workspace);
    workspace.clock.end_sample();
  }
}

void BatchJob::fill_row(size_t row, Workspace& workspace) {
  if (!prepare_row(row, workspace)) return;
  const auto& specs = context_.writer.rows();
  std::vector<std::byte*>& out = workspace.rows;
  out.resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) out[i] = static_cast<std::byte*>(memory_[i].get()) + row * specs[i].bytes;
  context_.writer.write(workspace, out);
}

bool BatchJob::prepare_row(size_t row, Workspace& workspace) {
  ids_[row] = plan_.positions[row];  // until the source says better
  try {
    read_row(row, workspace);
    ids_[row] = workspace.sample.id;
    workspace.clock.enter(LoadStage::decode);
    context_.writer.prepare(workspace, seed(row));
    return true;
  } catch (const StepError&) {
    throw;
  } catch (...) {
    if (context_.options.on_bad_sample == OnBadSample::fail) throw;
    troubles_[row] = {current_message(), workspace.clock.stage()};
    return false;
  }
}

void BatchJob::read_row(size_t row, Workspace& workspace) {
  for (int64_t attempt = 0;; ++attempt) {
    try {
      context_.source.read(plan_.positions[row], workspace.sample);
      return;
    } catch (const StepError&) {
      throw;
    } catch (...) {
      if (attempt >= context_.options.retries || cancelled_) throw;
    }
    context_.retries.fetch_add(1, std::memory_order_relaxed);
    wait_to_retry(attempt);
  }
}

void BatchJob::wait_to_retry(int64_t attempt) const {
  const auto wanted = std::min(kLongestRetry, kFirstRetry * (int64_t{1} << std::min<int64_t>(attempt, 10)));
  const auto end = std::chrono::steady_clock::now() + wanted;
  while (!cancelled_ && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kRetryPatience);
}

uint64_t BatchJob::seed(size_t row) const {
  const uint64_t seed =
      mix_seed(context_.options.seed, static_cast<uint64_t>(plan_.place.epoch), static_cast<uint64_t>(ids_[row]));
  return plan_.repeats ? mix_seed(seed, static_cast<uint64_t>(plan_.first) + row) : seed;
}

void BatchJob::close_gaps(BatchPlace& place) {
  size_t kept = 0;
  const size_t padding_from = ids_.size() - static_cast<size_t>(place.padding);
  for (size_t row = 0; row < ids_.size(); ++row) {
    if (!troubles_[row].message.empty()) {
      if (row >= padding_from) --place.padding;
      skipped_.push_back(std::move(troubles_[row]));
      continue;
    }
    for (size_t i = 0; i < memory_.size() && kept != row; ++i) {
      auto* base = static_cast<std::byte*>(memory_[i].get());
      const size_t bytes = context_.writer.rows()[i].bytes;
      if (bytes > 0) std::memcpy(base + kept * bytes, base + row * bytes, bytes);
    }
    ids_[kept++] = ids_[row];
  }
  ids_.resize(kept);
}

at::Tensor BatchJob::make_tensor(size_t which, int64_t rows) {
  const RowSpec& row = context_.writer.rows()[which];
  c10::SmallVector<int64_t, 5> sizes{rows};
  sizes.append(row.sizes.begin(), row.sizes.end());
  c10::SmallVector<int64_t, 5> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
  if (row.channels_last)
    strides = {row.sizes[0] * row.sizes[1] * row.sizes[2], 1, row.sizes[0] * row.sizes[2], row.sizes[0]};
  c10::DataPtr& memory = memory_[which];
  void* const data = memory.get();
  const auto give_back = memory.get_deleter();
  return at::for_blob(data, sizes)
      .strides(strides)
      .context(memory.release_context(), give_back)
      .options(at::TensorOptions().dtype(row.dtype))
      .make_tensor();
}

void BatchJob::check() const {
  for (const std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(error);
  }
}

Batch BatchJob::finish() {
  BatchPlace place = plan_.place;
  close_gaps(place);
  NamedTensors tensors;
  tensors.reserve(memory_.size());
  for (size_t i = 0; i < memory_.size(); ++i)
    tensors.emplace_back(context_.writer.rows()[i].name, make_tensor(i, static_cast<int64_t>(ids_.size())));
  constexpr uint64_t mix_stream = 0x6d6978;  // keeps its seed apart from the samples'
  const uint64_t of_epoch = mix_seed(context_.options.seed, static_cast<uint64_t>(plan_.place.epoch), mix_stream);
  return mix_batch({std::move(tensors), std::move(ids_), place}, context_.writer.options().mix,
                   mix_seed(of_epoch, static_cast<uint64_t>(plan_.first)));
}

}  // namespace bellows::data
