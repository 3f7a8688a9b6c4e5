#include "bellows/data/loader/batch_job.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>

#include "bellows/core/seed.h"
#include "bellows/data/step_error.h"
#include "bellows/system/stop.h"

namespace bellows::data {

namespace {

constexpr std::chrono::milliseconds kFirstRetry{20}, kLongestRetry{2000}, kRetryPatience{5};

/// Fills [begin, end) with copies of `element`.
void fill_with(const std::vector<std::byte>& element, std::byte* begin, const std::byte* end) {
  const auto size = static_cast<size_t>(end - begin);
  if (size == 0) return;
  std::memcpy(begin, element.data(), element.size());
  for (size_t done = element.size(); done < size; done *= 2)
    std::memcpy(begin + done, begin, std::min(done, size - done));
}

}  // namespace

void BatchJob::begin(BatchPlan&& plan, int64_t slices) {
  const size_t rows = plan.positions.size();
  ids_.resize(rows);
  for (BadSample& trouble : troubles_) trouble.message.clear();
  troubles_.resize(rows);
  errors_.assign(static_cast<size_t>(slices), nullptr);
  skipped_.clear();
  memory_.clear();
  steps_.clear();
  for (const RowSpec& row : context_.writer.rows()) {
    memory_.push_back(row.padded() ? c10::DataPtr() : context_.memory.take(row.bytes * rows));
    steps_.emplace_back(row.padded() ? rows : 0);
  }
  slices_ = slices;
  claimed_ = done_ = 0;
  cancelled_ = false;
  plan_ = std::move(plan);
}

void BatchJob::clear() {
  memory_.clear();
  steps_.clear();
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
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].padded()) steps_[i][row].resize(context_.writer.bytes(i, workspace));
    out[i] =
        specs[i].padded() ? steps_[i][row].data() : static_cast<std::byte*>(memory_[i].get()) + row * specs[i].bytes;
  }
  context_.writer.write(workspace, out);
}

bool BatchJob::prepare_row(size_t row, Workspace& workspace) {
  ids_[row] = plan_.positions[row];  // until the source sets it
  try {
    read_row(row, workspace);
    ids_[row] = workspace.sample.id;
    workspace.clock.enter(LoadStage::decode);
    context_.writer.prepare(workspace, seed(row));
    return true;
  } catch (const StepError&) {
    throw;
  } catch (const Stopped&) {
    throw;
  } catch (...) {
    if (context_.options.on_bad_sample == OnBadSample::fail) throw;
    troubles_[row] = {current_message(), workspace.clock.stage(), plan_.positions[row]};
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
    } catch (const Stopped&) {
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
      if (!steps_[i].empty()) {
        steps_[i][kept] = std::move(steps_[i][row]);
        continue;
      }
      auto* base = static_cast<std::byte*>(memory_[i].get());
      const size_t bytes = context_.writer.rows()[i].bytes;
      if (bytes > 0) std::memcpy(base + kept * bytes, base + row * bytes, bytes);
    }
    ids_[kept++] = ids_[row];
  }
  ids_.resize(kept);
}

/// Copies the rows of a padded tensor into new memory, because the longest length is known only now. Returns that
/// length.
int64_t BatchJob::join_steps(size_t which) {
  const RowSpec& row = context_.writer.rows()[which];
  const auto* lengths = static_cast<const int64_t*>(memory_[which + 1].get());
  const size_t rows = ids_.size();
  int64_t longest = rows > 0 ? *std::max_element(lengths, lengths + rows) : 0;
  longest += (row.multiple_of - longest % row.multiple_of) % row.multiple_of;
  const size_t row_bytes = row.bytes * static_cast<size_t>(longest);
  // Round up to few distinct sizes, so that other batches can reuse the memory.
  memory_[which] = context_.memory.take(std::bit_ceil(rows * row_bytes));
  auto* out = static_cast<std::byte*>(memory_[which].get());
  for (size_t i = 0; i < rows; ++i, out += row_bytes) {
    const std::vector<std::byte>& steps = steps_[which][i];
    if (!steps.empty()) std::memcpy(out, steps.data(), steps.size());
    fill_with(row.fill, out + steps.size(), out + row_bytes);
  }
  steps_[which].clear();
  return longest;
}

at::Tensor BatchJob::make_tensor(size_t which, int64_t rows) {
  const RowSpec& row = context_.writer.rows()[which];
  c10::SmallVector<int64_t, 5> sizes{rows};
  if (row.padded()) sizes.push_back(join_steps(which));
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
  constexpr uint64_t mix_stream = 0x6d6978;  // separates its seed from the samples' seeds
  const uint64_t of_epoch = mix_seed(context_.options.seed, static_cast<uint64_t>(plan_.place.epoch), mix_stream);
  return mix_batch({std::move(tensors), std::move(ids_), place}, context_.writer.options().mix,
                   mix_seed(of_epoch, static_cast<uint64_t>(plan_.first)));
}

}  // namespace bellows::data
