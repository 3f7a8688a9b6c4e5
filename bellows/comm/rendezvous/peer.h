#pragma once

#include <cstdint>
#include <string>

namespace bellows::comm {

/// A process, as others on its machine can look it up.
struct Peer {
  std::string host;     ///< for messages
  std::string machine;  ///< the same where `pid` means the same process
  int64_t pid = 0;
  int64_t start_ticks = 0;  ///< tells it from a later process of the same number
};

enum class PeerState { running, stopped, ended, elsewhere };

Peer this_peer();
/// Of another machine nothing is known: elsewhere.
PeerState look_up(const Peer& peer);
/// "pid 4711 on host".
std::string name_of(const Peer& peer);

}  // namespace bellows::comm
