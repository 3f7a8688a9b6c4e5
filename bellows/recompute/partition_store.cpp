#include "bellows/recompute/partition_store.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/core/seed.h"
#include "bellows/recompute/saves.h"
#include "bellows/recompute/selection.h"
#include "bellows/system/thread.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::recompute::detail {

namespace {

/// A hash of the bytes in memory order.
uint64_t hash_of_bytes(const at::Tensor& dense) {
  const at::Tensor host = dense.is_cpu() ? dense : dense.cpu();
  const auto* bytes = static_cast<const char*>(host.const_data_ptr());
  const size_t count = host.nbytes(), words = count / 8;
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};  // independent, so that the processor computes them in parallel
  for (const size_t i : c10::irange(words)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, 8);
    uint64_t& lane = lanes[i % 4];
    lane = (lane ^ word) * 0x9e3779b97f4a7c15ULL;
    lane ^= lane >> 29;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes + 8 * words, count % 8);
  return mix_seed(mix_seed(lanes[0], lanes[1], lanes[2]), lanes[3], rest);
}

PartitionFacts facts_of(const at::Tensor& dense, int ranks, bool with_values) {
  PartitionFacts facts;
  facts.dtype = static_cast<int64_t>(dense.scalar_type());
  facts.dims = dense.dim();
  uint64_t layout = 0;
  for (const int64_t i : c10::irange(dense.dim())) {
    if (i < static_cast<int64_t>(facts.sizes.size())) facts.sizes[static_cast<size_t>(i)] = dense.size(i);
    const int64_t stride = dense.size(i) == 1 ? 1 : dense.stride(i);
    layout = mix_seed(layout, static_cast<uint64_t>(dense.size(i)), static_cast<uint64_t>(stride));
  }
  facts.layout = static_cast<int64_t>(layout);
  facts.slice_bytes = (dense.numel() + ranks - 1) / ranks * static_cast<int64_t>(dense.itemsize());
  facts.has_values = with_values;
  if (with_values) facts.values = static_cast<int64_t>(hash_of_bytes(dense));
  return facts;
}

/// Copies elements without calling operators on a CPU, because taps would receive them.
at::Tensor slice_of(const at::Tensor& dense, int rank, int ranks) {
  const int64_t size = (dense.numel() + ranks - 1) / ranks, begin = std::min(rank * size, dense.numel());
  const int64_t own = std::min(size, dense.numel() - begin);
  if (!dense.is_cpu()) {
    const tap::EagerGuard now;
    const at::Tensor result = at::zeros({size}, dense.options());
    if (own > 0) result.narrow(0, 0, own).copy_(at::as_strided(dense, {dense.numel()}, {1}).narrow(0, begin, own));
    return result;
  }
  at::Tensor result(at::detail::empty_cpu({size}, dense.scalar_type()));
  const size_t bytes = dense.itemsize();
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  std::memcpy(to, static_cast<const char*>(dense.const_data_ptr()) + static_cast<size_t>(begin) * bytes,
              static_cast<size_t>(own) * bytes);
  std::memset(to + static_cast<size_t>(own) * bytes, 0, static_cast<size_t>(size - own) * bytes);
  return result;
}

constexpr const char* why_ranks_differ =
    " All ranks of the group must save the same tensors, with the same values, in the same order. Create the guard "
    "only "
    "around code that computes the same on all ranks, or exclude tensors with `leave` or `kept_outputs = false`. Then "
    "create a new guard on all ranks.";

/// Params: ranks – the facts of each rank about the same gathering
void check_same(const std::vector<PartitionFacts>& ranks, const comm::Group& group) {
  const PartitionFacts& first = ranks[0];
  for (const size_t rank : c10::irange(ranks.size())) {
    const PartitionFacts& other = ranks[rank];
    TORCH_CHECK(other.number != PartitionFacts::failed, "partition: rank ", rank, " of group ", group.name(),
                " cannot provide its slice of a tensor that backward needs. The error message of that rank states the "
                "cause. Create a new guard on all ranks.");
    TORCH_CHECK_VALUE(other.number == first.number, "partition: backward needs tensor ", first.number, " (",
                      first.to_string(), ") on rank 0, and tensor ", other.number, " (", other.to_string(),
                      ") on rank ", rank, " of group ", group.name(), ".", why_ranks_differ);
    constexpr size_t compared_bytes = offsetof(PartitionFacts, has_values) - offsetof(PartitionFacts, dtype);
    const bool same = std::memcmp(&other.dtype, &first.dtype, compared_bytes) == 0;
    const char* strides = first.to_string() == other.to_string() ? " with other strides" : "";
    TORCH_CHECK_VALUE(same, "partition: tensor ", first.number, " that checkpointed calls saved is ", first.to_string(),
                      " on rank 0, and ", other.to_string(), strides, " on rank ", rank, " of group ", group.name(),
                      ".", why_ranks_differ);
    const bool compared = first.has_values != 0 && other.has_values != 0;
    TORCH_CHECK_VALUE(!compared || first.values == other.values, "partition: tensor ", first.number, " (",
                      first.to_string(), ") that checkpointed calls saved has different values on rank 0 and rank ",
                      rank, " of group ", group.name(), ".", why_ranks_differ);
  }
}

std::vector<PartitionFacts> facts_of_ranks(const PartitionFacts& own, const comm::Group& group) {
  const at::Tensor bytes = at::empty({sizeof(PartitionFacts)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &own, sizeof(own));
  const at::Tensor all = comm::all_gather(bytes, group);
  std::vector<PartitionFacts> result(static_cast<size_t>(group.size()));
  std::memcpy(result.data(), all.const_data_ptr(), all.nbytes());
  return result;
}

void copy_slice(const at::Tensor& slice, const at::Tensor& parts, int rank) {
  if (!slice.is_cpu()) {
    parts[rank].copy_(slice);
    return;
  }
  // Without an operator, which could start OpenMP threads for this thread
  std::memcpy(static_cast<char*>(parts.mutable_data_ptr()) + static_cast<size_t>(rank) * slice.nbytes(),
              slice.const_data_ptr(), slice.nbytes());
}

/// Returns: the complete tensor. If this rank cannot provide its slice, it still takes part in the comparison, so that
/// the other ranks throw instead of waiting.
at::Tensor gather_tensor(const Gathering& job, const comm::Group& group) {
  std::optional<c10::StreamGuard> stream;
  if (job.stream) stream.emplace(*job.stream);
  PartitionFacts facts = job.facts;
  at::Tensor parts;
  std::exception_ptr failure;
  try {
    TORCH_CHECK(job.slice.defined(), "partition: the slice of this rank is missing.");
    parts = at::empty({group.size(), job.slice.numel()}, job.slice.options());
    copy_slice(job.slice, parts, group.rank());
  } catch (...) {
    failure = std::current_exception();
    facts.number = PartitionFacts::failed;
  }
  const std::vector<PartitionFacts> all = facts_of_ranks(facts, group);
  if (failure) std::rethrow_exception(failure);
  check_same(all, group);
  comm::all_gather_in_place(parts.view({-1}).view(at::kByte), group);
  return at::as_strided(parts, job.sizes, job.strides);
}

}  // namespace

std::string PartitionFacts::to_string() const {
  const auto shown = static_cast<size_t>(std::min<int64_t>(dims, static_cast<int64_t>(sizes.size())));
  return c10::str(static_cast<c10::ScalarType>(dtype), " [", c10::Join(", ", c10::IntArrayRef(sizes.data(), shown)),
                  static_cast<int64_t>(shown) < dims ? ", …]" : "]");
}

PartitionedTensor::PartitionedTensor(std::shared_ptr<PartitionStore> store, const at::Tensor& dense,
                                     const PartitionFacts& facts)
    : store_(std::move(store)),
      facts_(facts),
      sizes_(dense.sizes()),
      strides_(dense.strides()),
      device_(dense.device()) {
  const at::Tensor slice = slice_of(dense, store_->group_.rank(), store_->group_.size());
  const SaveScope not_divided_again(SaveKind::none);
  slice_ = torch::autograd::SavedVariable(slice, false);
}

PartitionedTensor::~PartitionedTensor() {
  store_->forget(*this);
}

at::Tensor PartitionedTensor::unpack() {
  return store_->get(*this);
}

PartitionStore::PartitionStore(const comm::Group& group, bool check_values)
    : group_(comm::duplicate(group, "activations")), check_values_(check_values) {
  thread_ = start_thread("partition", [own = group_, shared = shared_] { run(own, shared); });
}

/// The thread first executes the queued gatherings, because other ranks may wait for them.
PartitionStore::~PartitionStore() {
  {
    const MutexLock lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->work.notify_all();
  thread_.join();
}

void PartitionStore::run(const comm::Group& group, const std::shared_ptr<Shared>& shared) {
  UniqueLock lock(shared->mutex);
  for (;;) {
    shared->work.wait(lock, [&]() BELLOWS_REQUIRES(shared->mutex) { return shared->ending || !shared->queue.empty(); });
    if (shared->queue.empty()) return;
    const std::shared_ptr<Gathering> job = std::move(shared->queue.front());
    shared->queue.pop_front();
    at::Tensor result;
    std::exception_ptr error = shared->error;
    lock.unlock();
    try {
      if (!error) result = gather_tensor(*job, group);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      shared->error = error;
    } else {
      ++shared->gathered;
      shared->sent_bytes +=
          (group.size() - 1) * (job->facts.slice_bytes + static_cast<int64_t>(sizeof(PartitionFacts)));
    }
    job->slice.reset();
    job->result = std::move(result);
    job->error = error;
    job->done = true;
    shared->progress.notify_all();
  }
}

std::shared_ptr<tap::PackedTensor> PartitionStore::put(const at::Tensor& dense) {
  tap::sync();
  const MutexLock lock(mutex_);
  PartitionFacts facts = facts_of(dense, group_.size(), check_values_ || first_pass_);
  facts.number = next_number_++;
  auto item = std::make_shared<PartitionedTensor>(shared_from_this(), dense, facts);
  items_.emplace(facts.number, item.get());
  ++stats_.tensors;
  stats_.bytes += static_cast<int64_t>(dense.nbytes());
  stats_.kept_bytes += facts.slice_bytes;
  return item;
}

std::shared_ptr<Gathering> PartitionStore::begin(PartitionedTensor& item) {
  auto job = std::make_shared<Gathering>();
  job->facts = item.facts_;
  job->sizes = item.sizes_;
  job->strides = item.strides_;
  std::exception_ptr failure;
  try {
    const PastRegions not_the_functions_operators;
    job->slice = item.slice_.unpack();
    tap::sync();
    if (!item.device_.is_cpu()) job->stream = c10::impl::VirtualGuardImpl(item.device_.type()).getStream(item.device_);
  } catch (...) {
    failure = std::current_exception();
    job->slice.reset();
  }
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->error) std::rethrow_exception(shared_->error);
    shared_->queue.push_back(job);
  }
  shared_->work.notify_one();
  if (failure) std::rethrow_exception(failure);
  return job;
}

at::Tensor PartitionStore::get(PartitionedTensor& item) {
  std::shared_ptr<Gathering> job;
  {
    const MutexLock lock(mutex_);
    first_pass_ = false;
    item.requested_by_ = tap::backward_id();
    job = std::exchange(item.ahead_, nullptr);
    if (job) {
      if (ahead_of_ == item.facts_.number) ahead_of_ = -1;
      const MutexLock state(shared_->mutex);
      if (job->done && !job->error) ++stats_.gathered_in_time;
    } else {
      job = begin(item);
    }
    gather_ahead(item.facts_.number, item.requested_by_);
  }
  UniqueLock lock(shared_->mutex);
  shared_->progress.wait(lock, [&] { return job->done; });
  if (job->error) std::rethrow_exception(job->error);
  return std::move(job->result);
}

/// Begins to gather the tensor that forward saved last before number `before`, and that this backward pass did not
/// request yet. Backward probably needs it next. At most one tensor is gathered in advance, to limit the memory.
void PartitionStore::gather_ahead(int64_t before, int64_t backward) {
  if (ahead_of_ >= 0 && ahead_for_ == backward) return;
  // The destructor of an item erases it from items_, so the items must live until the loop ends.
  std::vector<std::shared_ptr<PartitionedTensor>> alive;
  for (auto it = items_.lower_bound(before); it != items_.begin();) {
    const auto& item = alive.emplace_back((--it)->second->weak_from_this().lock());
    if (!item || item->ahead_ || item->requested_by_ == backward) continue;
    item->ahead_ = begin(*item);
    ahead_of_ = item->facts_.number;
    ahead_for_ = backward;
    return;
  }
}

void PartitionStore::forget(const PartitionedTensor& item) {
  const MutexLock lock(mutex_);
  items_.erase(item.facts_.number);
  if (ahead_of_ == item.facts_.number) ahead_of_ = -1;
}

PartitionStats PartitionStore::stats() const {
  const MutexLock lock(mutex_);
  const MutexLock state(shared_->mutex);
  PartitionStats result = stats_;
  result.gathered = shared_->gathered;
  result.sent_bytes = shared_->sent_bytes;
  return result;
}

}  // namespace bellows::recompute::detail
