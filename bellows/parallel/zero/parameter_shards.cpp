#include "bellows/parallel/zero/parameter_shards.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/core/mutex.h"
#include "bellows/parallel/use_order.h"
#include "bellows/system/machine.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/gradient_tap.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::parallel {

namespace {

constexpr const char* not_gathered =
    "this parameter is sharded over the ranks (ZeRO-3), and this rank has only a part of it. Use it in an operator on "
    "the thread that created the ShardedOptimizer, or call ShardedOptimizer::with_full_parameters().";

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void make_views(const Unit& unit, const Layout& layout, const at::Tensor& buffer) {
  for (const size_t index : unit.places) {
    const Place& place = layout.places[index];
    at::Tensor(place.parameter).set_data(place.view_of(buffer));
  }
}

/// Lets the parameters of a bucket have another dtype than its shards.
void change_dtype(Unit& unit, const Layout& layout, at::ScalarType dtype) {
  if (unit.flat.scalar_type() == dtype) return;
  unit.flat = at::empty(unit.flat.sizes(), unit.flat.options().dtype(dtype));
  make_views(unit, layout, unit.flat);
}

bool has_own_dtype(const Unit& unit) {
  return unit.shard.scalar_type() != unit.flat.scalar_type();
}

bool writes(const tap::OpRef& op, size_t argument) {
  const auto* alias = op.handle().schema().arguments()[argument].alias_info();
  return alias && alias->isWrite();
}

/// The memory that is available to each of `ranks` ranks, which share the memory of the CPU.
int64_t available_bytes(const c10::Device& device, int ranks) {
  if (device.is_cpu()) return this_machine().memory_available_bytes / ranks;
  return static_cast<int64_t>(at::accelerator::getMemoryInfo(device.index()).first);
}

/// Returns how many frozen buckets stay in memory until the step. They are the first ones. Collective.
/// Params: ranks – number of ranks that share the memory
size_t kept_frozen_units(const Layout& layout, const comm::Group& group, int ranks, int64_t limit) {
  if (layout.units.size() == layout.trained_units) return 0;
  if (limit < 0) {
    const int64_t half = available_bytes(layout.units.back().flat.device(), ranks) / 2;
    limit = -comm::all_reduce(at::scalar_tensor(-half, at::kLong), group, comm::Reduce::max).item<int64_t>();
  }
  size_t count = 0;
  for (size_t unit = layout.trained_units; unit < layout.units.size(); ++unit, ++count) {
    limit -= static_cast<int64_t>(layout.units[unit].flat.nbytes());
    if (limit < 0) break;
  }
  return count;
}

/// The memory of the bucket that was freed last. Buckets often have equal sizes, and new memory costs page faults.
class SpareMemory {
 public:
  c10::DataPtr take(c10::StorageImpl& storage) {
    c10::DataPtr memory = std::exchange(memory_, {});
    const bool fits = memory.get() && bytes_ == storage.nbytes() && memory.device() == storage.device();
    if (!fits) memory.clear();  // before more memory is allocated
    return fits ? std::move(memory) : storage.allocator()->allocate(storage.nbytes());
  }
  void put(c10::DataPtr memory, size_t bytes) {
    memory_ = std::move(memory);
    bytes_ = bytes;
  }
  void clear() { memory_.clear(); }

 private:
  c10::DataPtr memory_;
  size_t bytes_ = 0;
};

}  // namespace

class ParameterShards::Gathering final : public tap::OpCheck {
 public:
  Gathering(Layout& layout, const ShardGroups& groups, const Options& options);

  void check(const tap::OpRef& op, tap::Stack& stack) override;
  void release();
  void exchange_parts();
  void prefetch_first();
  void gather_all();
  void with_all(const std::function<void()>& body);

 private:
  enum class State { sharded, under_way, gathered };
  struct Bucket {
    State state = State::sharded;
    std::optional<comm::Pending> pending;  ///< set if the state is `under_way`
    /// Receives the parameters. It is another tensor, so that parameters that are not complete cannot be read, and owns its
    /// memory, because an exchange that fails may write to it later.
    at::Tensor received;
    int64_t backward = -1;  ///< ID of the last backward pass that used the bucket
  };

  std::optional<size_t> unit_of(const c10::IValue& value) const;
  void need(const std::vector<size_t>& units) BELLOWS_REQUIRES(mutex_);
  void keep_all() BELLOWS_REQUIRES(mutex_);
  std::vector<at::Tensor> gather_values();
  void take_values(const std::vector<at::Tensor>& values);
  void start_predicted(std::optional<size_t> unit) BELLOWS_REQUIRES(mutex_);
  void start(size_t unit) BELLOWS_REQUIRES(mutex_);
  void finish(size_t unit) BELLOWS_REQUIRES(mutex_);
  void free(size_t unit) BELLOWS_REQUIRES(mutex_);
  /// This rank's slice of a buffer of all ranks.
  at::Tensor own_slice(const at::Tensor& flat) const {
    const int64_t slice = flat.numel() / group_.size();
    return flat.narrow(0, slice * group_.rank(), slice);
  }
  c10::StorageImpl& storage(size_t unit) const { return *storage_of(layout_.units[unit].flat); }

  const Layout& layout_;
  /// A duplicate of the group, because the model itself may call collectives, and backward exchanges gradients.
  const comm::Group group_;
  const ShardGroups groups_;
  const bool reshard_after_forward_;
  size_t kept_end_ = 0;  ///< the frozen buckets before this one stay until release()
  const ShardMemory memory_;
  std::unordered_map<const c10::StorageImpl*, size_t> units_;
  Mutex mutex_;
  std::vector<Bucket> buckets_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<size_t> in_use_ BELLOWS_GUARDED_BY(mutex_);  ///< by the last operator that needed another bucket
  bool keep_all_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool writable_ BELLOWS_GUARDED_BY(mutex_) = false;
  UseOrder order_ BELLOWS_GUARDED_BY(mutex_);
  SpareMemory spare_ BELLOWS_GUARDED_BY(mutex_);
};

ParameterShards::Gathering::Gathering(Layout& layout, const ShardGroups& groups, const Options& options)
    : layout_(layout),
      group_(comm::duplicate(groups.shard, "parameters")),
      groups_(groups),
      reshard_after_forward_(options.reshard_after_forward),
      memory_(options.memory),
      buckets_(layout.units.size()) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < layout.units.size(); ++i) {
    Unit& unit = layout.units[i];
    if (!unit.shard.defined()) unit.shard = memory_.allocate(layout, i).copy_(own_slice(unit.flat));
    memory_.finish(i);
    for (const size_t index : unit.places) {
      Place& place = layout.places[index];
      const int64_t begin = place.count > 0 ? place.offset + place.begin - unit.slice * group_.rank() : 0;
      place.piece = unit.shard.narrow(0, begin, place.count);
    }
    if (options.parameter_dtype && unit.flat.is_floating_point()) change_dtype(unit, layout, *options.parameter_dtype);
    units_.emplace(&storage(i), i);
    tap::withdraw_memory(storage(i), not_gathered);
  }
  const int ranks = group_.size() * (groups.replicas ? groups.replicas->size() : 1);
  kept_end_ = layout.trained_units + kept_frozen_units(layout, group_, ranks, options.gathered_frozen_bytes);
}

std::optional<size_t> ParameterShards::Gathering::unit_of(const c10::IValue& value) const {
  if (!value.isTensor()) return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const auto found = units_.find(storage_of(tensor));
  return found == units_.end() ? std::nullopt : std::optional(found->second);
}

void ParameterShards::Gathering::check(const tap::OpRef& op, tap::Stack& stack) {
  std::vector<size_t> units;
  const auto arguments = op.arguments(stack);
  const MutexLock lock(mutex_);
  if (writable_) return;
  const auto use = [&](const c10::IValue& value, size_t argument) BELLOWS_REQUIRES(mutex_) {
    const std::optional<size_t> unit = unit_of(value);
    if (!unit) return;
    TORCH_CHECK_VALUE(!writes(op, argument), op.qualified_name(), " writes to a parameter that is sharded over the ",
                      "ranks (ZeRO-3). The next step would not see the change. Write to parameters inside "
                      "ShardedOptimizer::with_full_parameters().");
    if (std::find(units.begin(), units.end(), *unit) == units.end()) units.push_back(*unit);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isList()) {
      use(arguments[i], i);
      continue;
    }
    for (const c10::IValue& element : arguments[i].toListRef()) use(element, i);
  }
  if (units.empty() || keep_all_) return;
  if (tap::active_deferral()) {  // the operator runs later
    const tap::EagerGuard eager;
    keep_all();
  } else {
    need(units);
  }
}

void ParameterShards::Gathering::need(const std::vector<size_t>& units) {
  const int64_t backward = tap::backward_id();
  bool all_in_use = true;
  for (const size_t unit : units) {
    buckets_[unit].backward = backward;
    all_in_use = all_in_use && std::find(in_use_.begin(), in_use_.end(), unit) != in_use_.end();
  }
  if (all_in_use) return;
  const c10::NoGradGuard no_grad;
  in_use_.clear();
  for (const size_t unit : units) order_.note(unit);
  const std::optional<size_t> next = order_.next(order_.last());
  const auto stays = [&](size_t unit) BELLOWS_REQUIRES(mutex_) {
    if (unit == next || std::find(units.begin(), units.end(), unit) != units.end()) return true;
    if (unit >= layout_.trained_units && unit < kept_end_) return true;
    const bool used_up = backward >= 0 && buckets_[unit].backward == backward && unit < layout_.trained_units;
    return !reshard_after_forward_ && !used_up;
  };
  for (size_t unit = 0; unit < buckets_.size(); ++unit) {
    if (!stays(unit)) free(unit);
  }
  for (const size_t unit : units) start(unit);
  for (const size_t unit : units) finish(unit);
  in_use_ = units;
  start_predicted(next);
}

/// Starts to gather the predicted bucket, and to read the shard of the one after it.
void ParameterShards::Gathering::start_predicted(std::optional<size_t> unit) {
  if (!unit) return;
  start(*unit);
  if (const auto next = order_.next(UseOrder::after(order_.last(), *unit))) memory_.fetch(*next);
}

void ParameterShards::Gathering::start(size_t unit) {
  Bucket& bucket = buckets_[unit];
  if (bucket.state != State::sharded) return;
  const at::Tensor& flat = layout_.units[unit].flat;
  const c10::Storage memory(c10::Storage::use_byte_size_t(), storage(unit).nbytes(), spare_.take(storage(unit)));
  bucket.received = at::empty({0}, flat.options());
  bucket.received.set_(memory, 0, flat.sizes());
  memory_.fetch(unit);
  own_slice(bucket.received).copy_(layout_.units[unit].shard);
  memory_.finish(unit);
  bucket.pending = comm::all_gather_in_place_async(bucket.received, group_);
  bucket.state = State::under_way;
}

void ParameterShards::Gathering::finish(size_t unit) {
  Bucket& bucket = buckets_[unit];
  if (bucket.state != State::under_way) return;
  bucket.pending->wait();
  tap::provide_memory(storage(unit), tap::withdraw_memory(*storage_of(bucket.received), not_gathered));
  bucket.pending.reset();  // at the end, because the line above throws if there is no memory for its message
  bucket.received.reset();
  bucket.state = State::gathered;
}

void ParameterShards::Gathering::free(size_t unit) {
  if (buckets_[unit].state == State::sharded) return;
  finish(unit);
  spare_.put(tap::withdraw_memory(storage(unit), not_gathered), storage(unit).nbytes());
  buckets_[unit].state = State::sharded;
}

void ParameterShards::Gathering::release() {
  const tap::UncheckedOperators unchecked;
  tap::sync();  // pending operators may read the parameters
  const MutexLock lock(mutex_);
  for (size_t unit = 0; unit < buckets_.size(); ++unit) free(unit);
  in_use_.clear();
  order_.restart();
  keep_all_ = false;
}

void ParameterShards::Gathering::exchange_parts() {
  if (!groups_.divide_state) return;
  const tap::UncheckedOperators unchecked;
  std::vector<comm::Pending> pending;
  for (size_t unit = 0; unit < layout_.trained_units; ++unit) {
    pending.push_back(comm::all_gather_in_place_async(layout_.units[unit].shard, *groups_.replicas));
    if (!memory_.file) continue;
    pending.back().wait();
    pending.clear();
    memory_.finish(unit);
  }
  for (comm::Pending& one : pending) one.wait();
}

void ParameterShards::Gathering::prefetch_first() {
  const tap::UncheckedOperators unchecked;
  const c10::NoGradGuard no_grad;
  const MutexLock lock(mutex_);
  start_predicted(order_.next(order_.last()));
}

void ParameterShards::Gathering::gather_all() {
  const tap::UncheckedOperators unchecked;
  tap::sync();
  const MutexLock lock(mutex_);
  keep_all();
}

void ParameterShards::Gathering::keep_all() {
  const c10::NoGradGuard no_grad;
  spare_.clear();
  keep_all_ = true;
  for (size_t unit = 0; unit < buckets_.size(); ++unit) start(unit);
  for (size_t unit = 0; unit < buckets_.size(); ++unit) finish(unit);
}

/// Gathers all buckets in the dtype of their shards. Returns one buffer per bucket.
std::vector<at::Tensor> ParameterShards::Gathering::gather_values() {
  const tap::UncheckedOperators unchecked;
  tap::sync();
  const c10::NoGradGuard no_grad;
  const MutexLock lock(mutex_);
  in_use_.clear();
  for (size_t i = 0; i < layout_.units.size(); ++i) has_own_dtype(layout_.units[i]) ? free(i) : start(i);
  spare_.clear();
  std::vector<at::Tensor> values;
  values.reserve(layout_.units.size());
  for (size_t i = 0; i < layout_.units.size(); ++i) {
    const Unit& unit = layout_.units[i];
    if (!has_own_dtype(unit)) {
      finish(i);
      values.push_back(unit.flat);
      continue;
    }
    values.push_back(at::empty(unit.flat.sizes(), unit.flat.options().dtype(unit.shard.scalar_type())));
    memory_.fetch(i);
    own_slice(values.back()).copy_(unit.shard);
    memory_.finish(i);
    comm::all_gather_in_place(values.back(), group_);
  }
  return values;
}

/// Copies this rank's slices to the shards.
void ParameterShards::Gathering::take_values(const std::vector<at::Tensor>& values) {
  const tap::UncheckedOperators unchecked;
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < layout_.units.size(); ++i) {
    layout_.units[i].shard.copy_(own_slice(values[i]));
    memory_.finish(i);
  }
}

void ParameterShards::Gathering::with_all(const std::function<void()>& body) {
  const std::vector<at::Tensor> values = gather_values();
  const auto show = [&](bool complete) {
    {
      const MutexLock lock(mutex_);
      writable_ = complete;
    }
    const tap::UncheckedOperators unchecked;
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i) {
      const Unit& unit = layout_.units[i];
      if (has_own_dtype(unit)) make_views(unit, layout_, complete ? values[i] : unit.flat);
    }
  };
  try {
    show(true);
    body();
  } catch (...) {
    show(false);
    release();
    throw;
  }
  show(false);
  take_values(values);
  release();
}

ParameterShards::ParameterShards(Layout& layout, const ShardGroups& groups, const Options& options)
    : gathering_(std::make_shared<Gathering>(layout, groups, options)), guard_(gathering_) {}

ParameterShards::~ParameterShards() = default;

void ParameterShards::release() {
  gathering_->release();
}

void ParameterShards::exchange_parts() {
  gathering_->exchange_parts();
}

void ParameterShards::prefetch_first() {
  gathering_->prefetch_first();
}

void ParameterShards::gather_all() {
  gathering_->gather_all();
}

void ParameterShards::with_all(const std::function<void()>& body) {
  gathering_->with_all(body);
}

}  // namespace bellows::parallel
