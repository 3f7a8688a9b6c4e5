#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// The result of meet(). meet() also checks that all processes have the same token and world size, and that no rank
/// occurs twice.
struct Meeting {
  Store store;              ///< the part of the store that belongs to this job
  std::vector<Peer> peers;  ///< one process per rank
};

/// Returns the part of the store that is accessible only with `token`.
/// Params: who – name of this process, such as "rank 1", in its own errors and in those of other processes
/// Throws: c10::ValueError if the store belongs to a job with a different token
Store enter_job(const Store& store, const std::string& token, const std::string& who);

/// Opens the store and waits for the other ranks. The environment determines where the store is: in the launcher, in
/// rank 0's process, or in a file. Missing ranks are logged after 10 s, and then at growing intervals.
/// Params: time – how many times this process has already joined a job
///         check – called repeatedly during the wait; an exception ends it
/// Throws: like init()
Meeting meet(const LaunchEnvironment& place, int time, double timeout_s, const std::function<void()>& check = {});

}  // namespace bellows::comm
