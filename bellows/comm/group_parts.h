#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/connections.h"
#include "bellows/comm/group.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/watchdog.h"

namespace bellows::comm {

/// The settings from which a group is created.
struct GroupParts {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;          ///< index of this process in `ranks`
  std::string address;   ///< address of this machine for the sockets of Gloo
  bool nccl = false;     ///< for CUDA tensors, use NCCL in addition to Gloo
  double timeout_s = 0;  ///< timeout of a collective in seconds
  /// Time in which the ranks must connect; 0: `timeout_s`.
  double connect_timeout_s = 0;
  std::shared_ptr<Connections> connections = {};  ///< records the sockets; null: does not
};

/// Connects the ranks. Collective. A group of one rank needs no connection.
Group make_group(const GroupParts& parts, const Store& store, const std::shared_ptr<Watchdog>& watchdog);

/// Returns whether make_group() supports NCCL.
bool has_nccl();

}  // namespace bellows::comm
