#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bellows/comm/collectives.h"
#include "bellows/comm/group_impl.h"
#include "bellows/comm/rendezvous/store_impl.h"
#include "bellows/core/error.h"
#include "bellows/system/no_sigpipe.h"

namespace bellows::comm {

namespace {

/// Returns when all ranks are connected: if a rank left earlier, it would break the connections of ranks that still
/// connect.
Engine make_gloo(const GroupParts& parts, const c10::intrusive_ptr<c10d::Store>& store) {
  const NoSigpipe threads_of_gloo;  // its threads write to ranks that may have ended
  const bool own_timeout = parts.connect_timeout_s > 0;
  auto options =
      c10d::ProcessGroupGloo::Options::create(milliseconds(own_timeout ? parts.connect_timeout_s : parts.timeout_s));
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices = {interface && *interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                              : c10d::ProcessGroupGloo::createDeviceForHostname(parts.address)};
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  std::shared_ptr<SharedCollectives> shared;
  const auto connect = [&] {
    gloo =
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, parts.rank, static_cast<int>(parts.ranks.size()), options);
    gloo->barrier()->wait();
    shared = SharedCollectives::connect(*gloo);
  };
  parts.connections ? parts.connections->record(connect) : connect();
  if (shared && parts.connections) parts.connections->add(shared);
  if (shared) shared->set_timeout(milliseconds(parts.timeout_s));
  if (own_timeout) gloo->setTimeout(milliseconds(parts.timeout_s));
  return {gloo, shared};
}

/// Registers connecting as call 0 of the group, so that the watchdog reports delays and failures.
Engine connect_gloo(const GroupParts& parts, const c10::intrusive_ptr<c10d::Store>& store, Watchdog& watchdog) {
  const Call call = watchdog.enter(parts.name, "connect");
  try {
    Engine engine = make_gloo(parts, store);
    watchdog.finished(call);
    return engine;
  } catch (const c10::DistNetworkError&) {
    watchdog.finished(call);
    throw;  // the store failed; init() reports its owner
  } catch (const std::exception& error) {
    watchdog.finished(call);
    TORCH_CHECK_WITH(DistBackendError, false, watchdog.error_text(call, user_message(error)));
  }
}

/// Params: traffic – counter for the group's calls
Group connect_group(const GroupParts& parts, const Store& store, const std::shared_ptr<Watchdog>& watchdog,
                    std::shared_ptr<TrafficCount> traffic) {
  auto state = std::make_shared<Group::State>();
  static_cast<GroupParts&>(*state) = parts;
  state->traffic = std::move(traffic);
  const int size = static_cast<int>(parts.ranks.size());
  if (size == 1) return Group(state);
  // libtorch's flight recorder breaks when two threads use new groups at once. The watchdog records the same
  // information.
  [[maybe_unused]] static const int no_record = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  using Type = c10d::ProcessGroup::BackendType;
  const auto own_store = c10::make_intrusive<c10d::PrefixStore>("group/" + parts.name, store.state()->store);
  watchdog->add_group(parts.name, parts.ranks);
  state->store = store;
  state->watchdog = watchdog;
  state->process_group = c10::make_intrusive<c10d::ProcessGroup>(own_store, parts.rank, size);
  state->process_group->setBackend(c10::DeviceType::CPU, Type::GLOO,
                                   watched(connect_gloo(parts, own_store, *watchdog), parts, watchdog, state->traffic));
  if (parts.nccl) {
    state->process_group->setBackend(
        c10::DeviceType::CUDA, Type::NCCL,
        watched({make_nccl(own_store, parts.rank, size, parts.timeout_s)}, parts, watchdog, state->traffic));
  }
  state->process_group->setDefaultBackend(parts.nccl ? Type::NCCL : Type::GLOO);
  state->process_group->setGroupName(parts.name);
  return Group(state);
}

}  // namespace

Group make_group(const GroupParts& parts, const Store& store, const std::shared_ptr<Watchdog>& watchdog) {
  return connect_group(parts, store, watchdog, std::make_shared<TrafficCount>());
}

Group duplicate(const Group& group, const std::string& purpose) {
  Group::State& state = *group.state();
  if (group.size() == 1) return group;
  GroupParts parts = state;
  parts.name = parts.names->unique(parts.name + "/" + purpose);
  return connect_group(parts, *state.store, state.watchdog, state.traffic);
}

namespace {

/// Params: ranks – in the world, in ascending order
Group make_related(Group::State& relative, const std::vector<int>& ranks, const std::string& name) {
  GroupParts parts = relative;
  const int own = relative.ranks[static_cast<size_t>(relative.rank)];
  parts.ranks = ranks;
  parts.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), own) - ranks.begin());
  parts.name = parts.names->unique(c10::str(name, "[", c10::Join(",", ranks), "]"));
  return make_group(parts, relative.store.value_or(Store(nullptr)), relative.watchdog);
}

}  // namespace

Group subgroup(const Group& parent, const std::vector<int>& ranks, const std::string& name) {
  const std::vector<int>& all = parent.ranks();
  const int own = all[static_cast<size_t>(parent.rank())];
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  TORCH_CHECK_VALUE(ascending && std::includes(all.begin(), all.end(), ranks.begin(), ranks.end()) &&
                        std::binary_search(ranks.begin(), ranks.end(), own),
                    "subgroup ", name, "[", c10::Join(",", ranks), "]: expected distinct ranks of ", parent.name(),
                    " (size ", parent.size(), ") in ascending order, including this rank (", own, ").");
  return make_related(*parent.state(), ranks, name);
}

Group combine(const Group& first, const Group& second, const std::string& purpose) {
  if (second.size() == 1) return duplicate(first, purpose);
  if (first.size() == 1) return duplicate(second, purpose);
  std::set<int> ranks;
  for (const std::string& bytes : all_gather_strings(c10::Join(" ", first.ranks()), second)) {
    std::istringstream in(bytes);
    ranks.insert(std::istream_iterator<int>(in), std::istream_iterator<int>());
  }
  return make_related(*first.state(), {ranks.begin(), ranks.end()}, purpose);
}

std::map<std::string, Traffic> traffic(const Group& group) {
  return group.state()->traffic->all();
}

void TrafficCount::add(const std::string& name, int64_t bytes) {
  const MutexLock lock(mutex_);
  Traffic& traffic = of_[name];
  ++traffic.calls;
  traffic.bytes += bytes;
}

std::map<std::string, Traffic> TrafficCount::all() const {
  const MutexLock lock(mutex_);
  return of_;
}

Group::State::~State() {
  if (!process_group) return;
  for (int i = 0; i < 100 && watchdog->is_busy(name); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (watchdog->is_busy(name)) process_group.release();
}

int Group::rank() const {
  return state_->rank;
}

int Group::size() const {
  return static_cast<int>(state_->ranks.size());
}

const std::vector<int>& Group::ranks() const {
  return state_->ranks;
}

const std::string& Group::name() const {
  return state_->name;
}

}  // namespace bellows::comm
