#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bellows/comm/backends_impl.h"
#include "bellows/comm/group_impl.h"
#include "bellows/comm/store_impl.h"

namespace bellows::comm {

namespace {

c10::intrusive_ptr<c10d::Backend> make_gloo(const GroupParts& parts, const c10::intrusive_ptr<c10d::Store>& store) {
  auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(parts.timeout_s));
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices = {interface && *interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                              : c10d::ProcessGroupGloo::createDeviceForHostname(parts.address)};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, parts.rank, static_cast<int>(parts.ranks.size()), options);
}

}  // namespace

Group make_group(const GroupParts& parts, const Store& store, const std::shared_ptr<Watchdog>& watchdog) {
  auto state =
      std::make_shared<Group::State>(Group::State{.name = parts.name, .ranks = parts.ranks, .rank = parts.rank});
  const int size = static_cast<int>(parts.ranks.size());
  if (size == 1) return Group(state);
  using Type = c10d::ProcessGroup::BackendType;
  const auto own_store = c10::make_intrusive<c10d::PrefixStore>("group/" + parts.name, store.state()->store);
  watchdog->add_group(parts.name, parts.ranks);
  state->watchdog = watchdog;
  state->process_group = c10::make_intrusive<c10d::ProcessGroup>(own_store, parts.rank, size);
  state->process_group->setBackend(c10::DeviceType::CPU, Type::GLOO,
                                   watched(make_gloo(parts, own_store), parts.name, watchdog));
  if (parts.nccl) {
    state->process_group->setBackend(
        c10::DeviceType::CUDA, Type::NCCL,
        watched(make_nccl(own_store, parts.rank, size, parts.timeout_s), parts.name, watchdog));
  }
  state->process_group->setDefaultBackend(parts.nccl ? Type::NCCL : Type::GLOO);
  state->process_group->setGroupName(parts.name);
  return Group(state);
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
