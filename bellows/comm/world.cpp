#include "bellows/comm/world.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <optional>

#include "bellows/comm/group_parts.h"
#include "bellows/comm/rendezvous/listen.h"
#include "bellows/comm/rendezvous/rendezvous.h"
#include "bellows/comm/world_join.h"
#include "bellows/core/device.h"
#include "bellows/core/log.h"

namespace bellows::comm {

struct World::State {
  State(LaunchEnvironment place, GroupParts made_of) : environment(std::move(place)), parts(std::move(made_of)) {}
  ~State() {
    if (watchdog) watchdog->leave();
  }

  LaunchEnvironment environment;
  GroupParts parts;  ///< of the group of all ranks
  std::optional<Store> store;
  std::shared_ptr<Watchdog> watchdog;
  std::optional<Group> all;
};

namespace {

void check_options(const InitOptions& options) {
  TORCH_CHECK_VALUE(options.join_timeout_s > 0 && options.collective_timeout_s > 0 && options.warn_after_s > 0,
                    "init: expected timeouts above 0 s, got join_timeout_s ", options.join_timeout_s,
                    ", collective_timeout_s ", options.collective_timeout_s, ", warn_after_s ", options.warn_after_s,
                    ".");
  TORCH_CHECK_VALUE(options.backend != Backend::nccl || has_nccl(),
                    "init: NCCL was requested, but this build or machine has no CUDA. Use Backend::gloo.");
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  for (int rank = 0; rank < count; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return ranks;
}

std::string store_text(const LaunchEnvironment& place) {
  if (!place.store_file.empty()) return "file " + place.store_file;
  return place.master_address + ":" + std::to_string(place.master_port) +
         (place.launcher_has_store ? " (launcher)" : "");
}

void meet_and_connect(World::State& world, const JoinOptions& options) {
  const LaunchEnvironment& place = world.environment;
  Meeting meeting = meet(place, options.time, options.init.join_timeout_s, options.check);
  world.store = meeting.store;
  world.parts.address = place.store_file.empty() ? address_towards(place.master_address) : "127.0.0.1";
  world.watchdog = Watchdog::start(meeting.store, place.rank, std::move(meeting.peers), options.init.warn_after_s);
  world.all = make_group(world.parts, meeting.store, world.watchdog);
}

void connect_world(World::State& world, const JoinOptions& options) {
  try {
    meet_and_connect(world, options);
  } catch (const c10::DistNetworkError&) {
    const LaunchEnvironment& place = world.environment;
    TORCH_CHECK_WITH(DistBackendError, false, "init: rank ", place.rank, " lost the store at ", store_text(place), ": ",
                     place.launcher_has_store ? "the launcher" : "rank 0",
                     ", which serves it, has ended. Check its output.");
  }
}

}  // namespace

int World::rank() const {
  return state_->environment.rank;
}

int World::size() const {
  return state_->environment.world_size;
}

int World::local_rank() const {
  return state_->environment.local_rank;
}

int World::restart_count() const {
  return state_->environment.restart_count;
}

c10::Device World::device() const {
  if (!state_->parts.nccl) return c10::kCPU;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank())};
}

const std::string& World::backend() const {
  static const std::string names[] = {"none", "gloo", "nccl"};
  return names[size() == 1 ? 0 : state_->parts.nccl ? 2 : 1];
}

const LaunchEnvironment& World::environment() const {
  return state_->environment;
}

const Group& World::group() const {
  return *state_->all;
}

Group World::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  return comm::subgroup(group(), ranks, name);
}

World join_world(LaunchEnvironment place, const JoinOptions& options) {
  check_options(options.init);
  GroupParts parts{.name = "world", .ranks = first_ranks(place.world_size), .rank = place.rank};
  parts.nccl = options.init.backend != Backend::gloo && has_nccl();
  parts.timeout_s = options.init.collective_timeout_s;
  parts.connect_timeout_s = options.connect_timeout_s;
  parts.connections = options.connections;
  // Checks that there are as many GPUs as ranks.
  if (parts.nccl) parse_device("cuda:" + std::to_string(place.local_rank));
  auto state = std::make_shared<World::State>(std::move(place), std::move(parts));
  const LaunchEnvironment& environment = state->environment;
  if (environment.world_size > 1) {
    connect_world(*state, options);
  } else {
    state->all = make_group(state->parts, Store(nullptr), nullptr);
  }
  const World world(state);
  if (world.rank() == 0 && world.size() > 1) {
    log_info("world of ", world.size(), " ranks (", environment.launcher, "): ", world.backend(), ", store ",
             store_text(environment), ", device ", world.device());
  }
  return world;
}

World init(const InitOptions& options) {
  static std::atomic<int> times{0};  // number of joins; a process may join, leave and join again
  return join_world(read_launch_environment(), {.init = options, .time = times++});
}

}  // namespace bellows::comm
