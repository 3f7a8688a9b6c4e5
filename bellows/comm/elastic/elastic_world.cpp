#include "bellows/comm/elastic/elastic_world.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <thread>
#include <utility>

#include "bellows/comm/connections.h"
#include "bellows/comm/elastic/membership.h"
#include "bellows/comm/rendezvous/rendezvous.h"
#include "bellows/comm/rendezvous/store_view.h"
#include "bellows/comm/rendezvous/wait_report.h"
#include "bellows/comm/world_join.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/stop.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto look_period = 5ms;
constexpr double connect_timeout_s = 15;

Store open_job(const LaunchEnvironment& place, double timeout_s) {
  return enter_job(Store::join(place.master_address, place.master_port, timeout_s), place.token,
                   "process " + std::to_string(place.member))
      .under(members_prefix(place.restart_count));
}

}  // namespace

struct ElasticWorld::State {
  State(const InitOptions& given, LaunchEnvironment from)
      : options(given),
        place(std::move(from)),
        view([place = place, timeout_s = given.join_timeout_s] { return open_job(place, timeout_s); }) {}

  std::optional<Membership> newest() {
    const auto text = view.latest(membership_key);
    return text ? std::optional(Membership::parse(*text)) : std::nullopt;
  }
  /// A membership after the current one; none after the timeout.
  std::optional<Membership> newer(double timeout_s);
  /// Waits for a membership after the current one in which this process takes part.
  Membership wait_for_world();
  World join(const Membership& members);

  const InitOptions options;
  const LaunchEnvironment place;
  StoreView view;
  std::shared_ptr<Connections> connections;
  std::optional<World> world;
  int64_t generation = -1;
  int ranks_per_replica = 1;
  bool left_out = false;  ///< see was_left_out()
};

std::optional<Membership> ElasticWorld::State::newer(double timeout_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  do {
    throw_if_stopped("waiting for the other ranks");
    TORCH_CHECK(!view.is_gone(), "the launcher at ", place.master_address, ":", place.master_port, " has ended.");
    const std::optional<Membership> members = newest();
    if (members && members->generation > generation) return members;
    std::this_thread::sleep_for(look_period);
  } while (Clock::now() < end);
  return std::nullopt;
}

Membership ElasticWorld::State::wait_for_world() {
  auto end = Clock::now() + std::chrono::duration<double>(options.join_timeout_s);
  do {
    const std::optional<Membership> members = newer(options.join_timeout_s);
    const bool fits = members && members->ranks_per_replica == ranks_per_replica;
    if (fits && members->rank_of(place.member)) return *members;
    if (fits) {  // until its replica is complete, however long that takes
      left_out = true;
      end = Clock::now() + std::chrono::duration<double>(options.join_timeout_s);
    }
    std::this_thread::sleep_for(look_period);
  } while (Clock::now() < end);
  TORCH_CHECK(false, "ElasticWorld: the launcher announced no world of replicas with ", ranks_per_replica,
              ranks_per_replica == 1 ? " rank" : " ranks", " within ", options.join_timeout_s,
              " s to this process (ID ", place.member, "). Check that all ranks have the same settings.");
}

World ElasticWorld::State::join(const Membership& members) {
  LaunchEnvironment now = place;
  now.rank = *members.rank_of(place.member);
  now.world_size = static_cast<int>(members.ids.size());
  connections = std::make_shared<Connections>(place.master_port);
  const auto check = [this, generation = members.generation] {
    throw_if_stopped("waiting for the other ranks");
    const std::optional<Membership> latest = newest();
    TORCH_CHECK(!latest || latest->generation == generation, "another rank was lost while the ranks joined.");
  };
  // In the background, because waits for connections cannot be ended.
  const JoinOptions options_now{.init = options,
                                .time = static_cast<int>(members.generation),
                                .connect_timeout_s = connect_timeout_s,
                                .connections = connections};
  return in_background(
      [now, options_now](const std::stop_token& abandoned) {
        JoinOptions how = options_now;
        how.check = [abandoned] { TORCH_CHECK(!abandoned.stop_requested(), "abandoned"); };
        return join_world(now, how);
      },
      check);
}

bool ElasticWorld::is_offered() {
  return read_launch_environment().member >= 0;
}

ElasticWorld::ElasticWorld(const InitOptions& options, Start start) {
  LaunchEnvironment place = read_launch_environment();
  TORCH_CHECK_VALUE(place.member >= 0,
                    "ElasticWorld: the launcher of this process does not replace lost ranks. Start the program with "
                    "`bellows launch --replace-lost`.");
  InitOptions with_gloo = options;
  with_gloo.backend = Backend::gloo;  // waits of NCCL could not be ended
  state_ = std::make_unique<State>(with_gloo, std::move(place));
  if (start == Start::at_once) join();
}

void ElasticWorld::join(int ranks_per_replica) {
  TORCH_CHECK_VALUE(ranks_per_replica > 0, "ElasticWorld::join: expected 1 or more ranks per replica, got ",
                    ranks_per_replica, ".");
  if (has_joined() && state_->ranks_per_replica == ranks_per_replica) return;
  state_->ranks_per_replica = ranks_per_replica;
  if (ranks_per_replica > 1) state_->view.set(ranks_per_replica_key, std::to_string(ranks_per_replica));
  state_->view.set(ready_key(state_->place.member), "1");
  rejoin();
}

bool ElasticWorld::has_joined() const {
  return state_->world.has_value();
}

ElasticWorld::~ElasticWorld() = default;

const World& ElasticWorld::world() const {
  TORCH_CHECK(has_joined(), "ElasticWorld::world: this process is in no world. Call join() first, and rejoin() again ",
              "if it threw an exception.");
  return *state_->world;
}

bool ElasticWorld::is_replacement() const {
  return state_->place.member >= state_->place.world_size;
}

bool ElasticWorld::was_left_out() const {
  return state_->left_out;
}

int64_t ElasticWorld::generation() const {
  return state_->generation;
}

bool ElasticWorld::changed() const {
  const std::optional<Membership> members = state_->newest();
  return members && members->generation > state_->generation;
}

bool ElasticWorld::lost_rank(double timeout_s) const {
  return state_->newer(timeout_s).has_value();
}

void ElasticWorld::leave() {
  if (state_->connections) state_->connections->shut_down();
}

void ElasticWorld::rejoin() {
  leave();
  state_->world.reset();
  state_->left_out = false;
  for (;;) {
    const Membership members = state_->wait_for_world();
    state_->generation = members.generation;
    try {
      state_->world = state_->join(members);
      state_->view.set(joined_key(state_->place.member), "1");
      return;
    } catch (const Stopped&) {
      throw;
    } catch (const std::exception& error) {  // errors of sockets, too, which are no c10::Error
      state_->connections->shut_down();
      if (!state_->newer(connect_timeout_s)) throw;
      log_info("The ranks join again, because one was lost: ", user_message(error));
    }
  }
}

}  // namespace bellows::comm
