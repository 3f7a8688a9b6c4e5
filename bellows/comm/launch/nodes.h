#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bellows/comm/launch/launcher.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/comm/rendezvous/store_view.h"

namespace bellows::comm {

/// Why a round of ranks has to end.
struct Failure {
  int rank = -1;  ///< -1: a whole node is lost
  int exit_code = 1;
  std::string how;
  std::vector<std::string> last_lines;
  bool asked_for = false;  ///< somebody told the launcher or a rank to stop: no further round
  bool is_last = false;    ///< there cannot be one

  /// "rank 1 was killed by signal 9 (Killed)"
  std::string who_and_how() const { return rank < 0 ? how : "rank " + std::to_string(rank) + " " + how; }
};

/// The launchers of a job, which node 0's store connects: what one of them sees, all of them hear of. One machine is a job
/// of one node.
///
/// Before each round of ranks the nodes meet. Node 0 waits for all, after a failure for no longer than the node timeout if
/// enough of them are there, and writes down who takes part. A node that comes too late waits for the next round.
class Nodes {
 public:
  using Interrupted = std::function<std::optional<Failure>()>;

  /// Serves the store or joins it.
  /// Params: interrupted – asked often while node 0 is waited for
  /// Throws: as launch()
  Nodes(const LaunchOptions& options, const std::string& token, const Interrupted& interrupted);

  /// Waits until a round begins in which this node takes part, and gives its number: 0, 1, …, which is larger than that of
  /// the last one. Nothing: the job ended meanwhile, as over() says.
  /// Params: ranks – of this node; interrupted – asked often; what it gives ends the job for this node
  /// Throws: c10::Error – too few nodes came
  std::optional<int> meet(int ranks, const Interrupted& interrupted);
  const std::optional<Failure>& over() const { return over_; }

  const std::string& host() const { return host_; }
  int port() const { return store_->port(); }
  int node_rank() const { return node_rank_; }
  int first_rank() const { return first_rank_; }  ///< of this node, in this round
  int world_size() const { return world_size_; }

  /// The round's first failure, of this node or another; the first to report one decides.
  Failure report(const Failure& failure);
  /// Has another node reported one, or been lost? Also gives this node's sign of life. Call a few times a second.
  std::optional<Failure> heard();
  /// This node's ranks of the round have ended.
  void ended();
  bool all_ended();
  std::string not_ended();  ///< "node 1, node 2"
  /// Node 0 goes last: it serves the store.
  /// Params: failure – how the job ended
  void leave(const std::optional<Failure>& failure);

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    int node = 0, ranks = 0;
    std::string id;  ///< of its launcher: one that was started anew is another
  };
  struct Beat {
    std::string text;
    Clock::time_point since;
  };
  bool join_node_zero(int port, const std::function<Store(const Store&)>& enter, const Interrupted& interrupted);
  std::string key(const std::string& what) const;
  double age_s(Clock::time_point since) const;
  void give_sign_of_life();
  std::vector<Member> those_here(int ranks);
  bool gather(int ranks, const Interrupted& interrupted);
  bool attend(int ranks, const Interrupted& interrupted);
  bool has_to_stop(const Interrupted& interrupted);
  bool take_place(const std::vector<Member>& members);
  std::string missing_nodes(const std::vector<Member>& there) const;
  void check_patience(Clock::time_point since, const std::vector<Member>& there) const;
  double silent_s(int node);
  std::optional<Failure> lost_node();

  const int nodes_, node_rank_, min_nodes_;
  const double node_timeout_s_;
  std::string id_, host_ = "127.0.0.1";
  std::optional<Store> store_;
  std::optional<Store> job_;       ///< its part for this job; not on node 0
  std::optional<StoreView> view_;  ///< of several nodes
  int round_ = -1, first_rank_ = 0, world_size_ = 0;
  std::vector<Member> members_;
  std::optional<Failure> over_;
  Clock::time_point last_beat_;
  int64_t beat_ = 0;
  std::map<int, Beat> beats_;  ///< of the other nodes: the last, and since when
};

}  // namespace bellows::comm
