#pragma once

#include <string>
#include <vector>

#include "bellows/comm/launch_environment.h"
#include "bellows/comm/peer_impl.h"
#include "bellows/comm/store.h"

namespace bellows::comm {

/// The ranks meet: everyone's token, rank and world size are compared.
struct Meeting {
  Store store;              ///< this job's part of it
  std::vector<Peer> peers;  ///< one a rank
};

/// The store that the environment names: the launcher's, a file, or one that rank 0 serves here.
/// Throws: as init()
Store open_store(const LaunchEnvironment& place, double timeout_s);

/// The part of the store that only holders of `token` know of.
/// Params: who – "rank 1", for the others' messages
/// Throws: c10::ValueError – the store belongs to a job with another token
Store enter_job(const Store& store, const std::string& token, const std::string& who);

/// Params: time – how often this process has done so before
/// Throws: as init()
Meeting meet(const Store& store, const LaunchEnvironment& place, int time, double timeout_s);

}  // namespace bellows::comm
