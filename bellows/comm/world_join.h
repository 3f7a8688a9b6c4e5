#pragma once

#include <functional>
#include <memory>

#include "bellows/comm/connections.h"
#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/world.h"

namespace bellows::comm {

/// How a process joins a world.
struct JoinOptions {
  InitOptions init;
  int time = 0;  ///< number of worlds of this job that existed before; the same on all ranks
  /// Time in which the ranks must connect after they have met; 0: collective_timeout_s.
  double connect_timeout_s = 0;
  std::shared_ptr<Connections> connections = {};  ///< records the sockets of all groups; null: does not
  std::function<void()> check = {};               ///< called repeatedly while ranks are missing; may throw
};

/// Joins the world that the environment describes. init() calls this function with the environment of the process.
World join_world(LaunchEnvironment place, const JoinOptions& options);

}  // namespace bellows::comm
