#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/watchdog.h"

namespace bellows::comm {

/// What a group is made of.
struct GroupParts {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;          ///< this process's place in `ranks`
  std::string address;   ///< of this machine, for Gloo's sockets
  bool nccl = false;     ///< beside Gloo, for tensors on a GPU
  double timeout_s = 0;  ///< of a collective
};

/// Connects the ranks. Collective. One rank alone needs no connection.
Group make_group(const GroupParts& parts, const Store& store, const std::shared_ptr<Watchdog>& watchdog);

/// Whether make_group can give a group NCCL.
bool has_nccl();

}  // namespace bellows::comm
