#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/launcher.h"
#include "bellows/comm/store.h"

namespace bellows::comm {

/// Why a round of ranks has to end.
struct Failure {
  int rank = -1;  ///< -1: a whole node is lost
  int exit_code = 1;
  std::string how;
  std::vector<std::string> last_lines;
  bool asked_for = false;  ///< somebody told the launcher to stop: no further round
};

/// The launchers of a job: what one of them sees, all of them hear of. One machine is a job of one node.
class Nodes {
 public:
  /// Serves the store or joins it, and waits for all nodes.
  /// Throws: as launch()
  Nodes(const LaunchOptions& options, const std::string& token);

  const std::string& host() const { return host_; }
  int port() const { return store_->port(); }
  int first_rank() const { return first_rank_; }  ///< of this node
  int world_size() const { return world_size_; }

  /// Only on one node: the next round has so many ranks.
  void resize(int ranks) { world_size_ = ranks; }

  /// The round's first failure, of this node or another; the first to report one decides.
  Failure report(int round, const Failure& failure);
  /// Has another node reported one? Also gives this node's sign of life. Call a few times a second.
  std::optional<Failure> heard(int round);
  /// This node's ranks of the round have ended.
  void ended(int round);
  bool all_ended(int round);
  /// Node 0 goes last: it serves the store.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  bool all_have(const std::string& key) const;
  void meet(int ranks);
  std::optional<Failure> lost_node();

  const int nodes_, node_rank_;
  std::string host_ = "127.0.0.1";
  std::optional<Store> store_, job_;
  int first_rank_ = 0, world_size_ = 0;
  Clock::time_point last_beat_;
  int64_t beat_ = 0;
  std::vector<std::pair<std::string, Clock::time_point>> beats_;  ///< of the nodes: the last, and since when
};

}  // namespace bellows::comm
