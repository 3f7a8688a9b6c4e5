#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cli/process.h"

namespace bellows::testing {

/// The machines of a test and what is between them.
class Network {
 public:
  virtual ~Network() = default;

  /// Turns `bellows launch …` into that of a node: where it meets the others, and how it gets there.
  cli::Launch on_node(int node, cli::Launch launch) const;

  /// From now on each way takes longer: at least a third of a second for 300 kB between two nodes.
  virtual void slow_down() = 0;
  /// What is sent to this node, and by it, is lost, until heal().
  virtual void cut(int node) = 0;
  virtual void heal(int node) = 0;

 protected:
  virtual std::string rendezvous(int node) const = 0;
  virtual std::vector<std::string> prefix(int) const { return {}; }
  virtual std::vector<std::string> environment(int) const { return {}; }
};

/// "proxy": the nodes are processes of this machine, and a TcpProxy is between them. "namespaces": each has network interfaces
/// and process numbers of its own, a switch between them; what the kernel drops, nobody hears of.
std::unique_ptr<Network> make_network(const std::string& kind, int nodes);

/// Those that this process may make: the proxy always.
std::vector<std::string> network_kinds();

/// What such a test needs of the command line, quietly. True: it ended with 0.
bool run_quietly(const std::string& command);

}  // namespace bellows::testing
