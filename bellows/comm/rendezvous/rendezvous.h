#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// The result of meet(), in which the ranks compare tokens, ranks and world sizes.
struct Meeting {
  Store store;              ///< the part for this job
  std::vector<Peer> peers;  ///< one per rank
};

/// Returns the part of the store that is only accessible with `token`.
/// Params: who – "rank 1", for messages of the others
/// Throws: c10::ValueError if the store belongs to a job with another token
Store enter_job(const Store& store, const std::string& token, const std::string& who);

/// Opens the store from the environment (the launcher's, a file, or one that rank 0 serves here) and waits for the
/// other ranks. Logs the missing ranks after 10 s, then at growing intervals.
/// Params: time – number of earlier joins of this process
/// Throws: like init()
Meeting meet(const LaunchEnvironment& place, int time, double timeout_s);

}  // namespace bellows::comm
