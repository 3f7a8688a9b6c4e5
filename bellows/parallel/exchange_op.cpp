#include "bellows/parallel/exchange_op.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "bellows/comm/group_impl.h"
#include "bellows/core/mutex.h"
#include "bellows/tap/deferral.h"

namespace bellows::parallel {

namespace {

/// A tensor that all exchanges of a world write, so that no pass changes their order, merges or removes them. Its
/// element is 1. To find the sizes of results, compiled functions try operators on zeros; the ranks then exchange
/// nothing. The dtype int32 makes an exchange an operator that may fail, so weights do not change before it.
at::Tensor make_order() {
  // Without the dispatcher, so that no compiled function records that the tensor is made.
  at::Tensor order = at::detail::empty_cpu({1}, at::TensorOptions().dtype(at::kInt));
  *order.mutable_data_ptr<int32_t>() = 1;
  return order;
}

/// Groups of which compiled functions have recorded exchanges. Operators refer to a group by its number.
/// Threads: thread-safe
class RecordedGroups {
 public:
  std::pair<int64_t, at::Tensor> number_and_order(const comm::Group& group) {
    const MutexLock lock(mutex_);
    std::erase_if(entries_, [](const auto& entry) { return entry.second.group.expired(); });
    at::Tensor order;
    for (const auto& [number, entry] : entries_) {
      const auto known = entry.group.lock();
      if (known == group.state()) return {number, entry.order};
      if (known && known->watchdog == group.state()->watchdog) order = entry.order;  // another group of the same world
    }
    if (!order.defined()) order = make_order();
    entries_[++last_] = {group.state(), order};
    return {last_, order};
  }

  comm::Group group(int64_t number) {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(number);
    auto state = found == entries_.end() ? nullptr : found->second.group.lock();
    TORCH_CHECK(state, "compile: the process group of a recorded exchange no longer exists. Keep the group, or the ",
                "object that uses it, until the compiled function returns.");
    return comm::Group(std::move(state));
  }

 private:
  struct Entry {
    std::weak_ptr<comm::Group::State> group;
    at::Tensor order;
  };

  Mutex mutex_;
  std::map<int64_t, Entry> entries_ BELLOWS_GUARDED_BY(mutex_);
  int64_t last_ BELLOWS_GUARDED_BY(mutex_) = 0;
};

RecordedGroups& recorded_groups() {
  static auto* const groups = new RecordedGroups;  // never destroyed: programs may outlive static objects
  return *groups;
}

bool is_trial(const at::Tensor& order) {
  return *order.const_data_ptr<int32_t>() == 0;
}

at::Tensor reduced(const at::Tensor& x, const comm::Group& group, comm::Reduce op) {
  return comm::all_reduce(x.clone(at::MemoryFormat::Contiguous), group, op);
}

at::Tensor run_all_reduce(const at::Tensor& x, int64_t group, int64_t op, const at::Tensor& order) {
  if (is_trial(order)) return at::empty(x.sizes(), x.options());
  return reduced(x, recorded_groups().group(group), static_cast<comm::Reduce>(op));
}

at::Tensor run_all_gather(const at::Tensor& x, int64_t group, const at::Tensor& order) {
  const comm::Group ranks = recorded_groups().group(group);
  if (!is_trial(order)) return comm::all_gather(x.contiguous(), ranks);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), ranks.size());
  return at::empty(sizes, x.options());
}

at::Tensor run_all_to_all(const at::Tensor& x, int64_t group, const at::Tensor& order) {
  if (is_trial(order)) return at::empty(x.sizes(), x.options());
  return comm::all_to_all(x.contiguous(), recorded_groups().group(group));
}

bool is_deferred(const comm::Group& group) {
  return group.size() > 1 && tap::active_deferral();
}

/// Calls the operator that runs `run`, so that the program records it.
template <auto run, class... Arguments>
at::Tensor record(const char* name, const at::Tensor& x, const comm::Group& group, Arguments... arguments) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<std::remove_pointer_t<decltype(run)>>();
  const auto [number, order] = recorded_groups().number_and_order(group);
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, number, arguments..., order);
}

}  // namespace

// Registered in the source file that calls the operators, so that a static link includes the registration.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("all_reduce(Tensor x, int group, int op, Tensor(a!) order) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("all_gather(Tensor x, int group, Tensor(a!) order) -> Tensor", {at::Tag::pt2_compliant_tag});
  library.def("all_to_all(Tensor x, int group, Tensor(a!) order) -> Tensor", {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CompositeExplicitAutograd, library) {
  library.impl("all_reduce", run_all_reduce);
  library.impl("all_gather", run_all_gather);
  library.impl("all_to_all", run_all_to_all);
}

at::Tensor all_reduce_op(const at::Tensor& x, const comm::Group& group, comm::Reduce op) {
  if (!is_deferred(group)) return reduced(x, group, op);
  return record<run_all_reduce>("bellows::all_reduce", x, group, static_cast<int64_t>(op));
}

at::Tensor all_gather_op(const at::Tensor& x, const comm::Group& group) {
  if (!is_deferred(group)) return comm::all_gather(x.contiguous(), group);
  return record<run_all_gather>("bellows::all_gather", x, group);
}

at::Tensor all_to_all_op(const at::Tensor& x, const comm::Group& group) {
  if (!is_deferred(group)) return comm::all_to_all(x.contiguous(), group);
  return record<run_all_to_all>("bellows::all_to_all", x, group);
}

}  // namespace bellows::parallel
