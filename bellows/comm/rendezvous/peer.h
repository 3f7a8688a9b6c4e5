#pragma once

#include <cstdint>
#include <string>

namespace bellows::comm {

/// Identifies a process for other processes on its machine.
struct Peer {
  std::string host;     ///< for messages
  std::string machine;  ///< `pid` is only comparable if this is equal
  int64_t pid = 0;
  int64_t start_ticks = 0;  ///< distinguishes it from a later process with the same pid
};

enum class PeerState { running, stopped, ended, elsewhere };

Peer this_peer();
/// Returns `elsewhere` for a process on another machine, whose state is unknown.
PeerState look_up(const Peer& peer);
/// "pid 4711 on host".
std::string name_of(const Peer& peer);

}  // namespace bellows::comm
