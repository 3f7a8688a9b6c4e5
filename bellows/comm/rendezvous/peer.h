#pragma once

#include <cstdint>
#include <string>

namespace bellows::comm {

/// Identifies a process. Other processes on the same machine can look up its state.
struct Peer {
  std::string host;     ///< host name for messages
  std::string machine;  ///< ID of the machine; process IDs can be compared only within one machine
  int64_t pid = 0;
  int64_t start_ticks = 0;  ///< start time, which distinguishes the process from a later process with the same ID
};

enum class PeerState { running, stopped, ended, elsewhere };

Peer this_peer();
/// Returns the state of a process. If the process runs on another machine, its state is unknown and the result is
/// `elsewhere`.
PeerState look_up(const Peer& peer);
/// Returns a text such as "pid 4711 on host".
std::string name_of(const Peer& peer);

}  // namespace bellows::comm
