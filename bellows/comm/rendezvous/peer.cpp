#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bellows/comm/rendezvous/peer.h"

namespace bellows::comm {

namespace {

/// The fields of /proc/PID/stat that are used here.
struct ProcessStat {
  char state = 'X';  ///< 'T': stopped, 'Z': ended, but not yet reaped by its parent
  int64_t start_ticks = 0;
};

ProcessStat read_stat(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // a process name may contain any characters, including parentheses
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  return stat;
}

std::string this_machine_id() {
  std::error_code ignored;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

}  // namespace

Peer this_peer() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return {
      .host = host.data(), .machine = this_machine_id(), .pid = getpid(), .start_ticks = read_stat("self").start_ticks};
}

PeerState look_up(const Peer& peer) {
  static const std::string here = this_machine_id();
  if (peer.machine != here) return PeerState::elsewhere;
  const ProcessStat stat = read_stat(std::to_string(peer.pid));
  if (stat.state == 'X' || stat.state == 'Z' || stat.start_ticks != peer.start_ticks) return PeerState::ended;
  return stat.state == 'T' || stat.state == 't' ? PeerState::stopped : PeerState::running;
}

std::string name_of(const Peer& peer) {
  return "pid " + std::to_string(peer.pid) + " on " + peer.host;
}

}  // namespace bellows::comm
