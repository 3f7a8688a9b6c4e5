#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// The ranks meet: everyone's token, rank and world size are compared.
struct Meeting {
  Store store;              ///< this job's part of it
  std::vector<Peer> peers;  ///< one a rank
};

/// The part of the store that only holders of `token` know of.
/// Params: who – "rank 1", for the others' messages
/// Throws: c10::ValueError – the store belongs to a job with another token
Store enter_job(const Store& store, const std::string& token, const std::string& who);

/// Opens the store that the environment names (the launcher's, a file, or one that rank 0 serves here) and meets the others
/// there. Logs who is missing after 10 s, then at growing intervals.
/// Params: time – how often this process has done so before
/// Throws: as init()
Meeting meet(const LaunchEnvironment& place, int time, double timeout_s);

}  // namespace bellows::comm
