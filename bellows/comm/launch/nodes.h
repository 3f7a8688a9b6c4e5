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

/// The reason why a round of ranks ends.
struct Failure {
  int rank = -1;  ///< -1 if a node was lost
  int exit_code = 1;
  std::string how;
  std::vector<std::string> last_lines;
  bool asked_for = false;  ///< whether the launcher or a rank got a stop request; then no further round starts
  bool is_last = false;    ///< whether no further round is possible

  /// For example "rank 1 was killed by signal 9 (Killed)".
  std::string who_and_how() const { return rank < 0 ? how : "rank " + std::to_string(rank) + " " + how; }
};

/// The launchers of a job. They are connected through node 0's store, in which they report failures to each other. A
/// job on one machine has one node.
///
/// The nodes meet before each round. Node 0 waits for all nodes and writes the list of the nodes that take part. After
/// a failure, if enough nodes have joined, it waits for the other nodes no longer than the node timeout. A node that
/// joins later waits for the next round.
class Nodes {
 public:
  using Interrupted = std::function<std::optional<Failure>()>;

  /// On node 0, serves the store. On other nodes, joins it.
  /// Params: interrupted – called repeatedly while this node waits for node 0
  /// Throws: like launch()
  Nodes(const LaunchOptions& options, const std::string& token, const Interrupted& interrupted);

  /// Waits until a round that includes this node begins, and returns its number. Numbers start at 0 and increase from
  /// round to round. Returns nothing if the job has ended; over() then returns the reason.
  /// Params: ranks – number of ranks on this node
  ///         interrupted – called repeatedly during the wait; if it returns a failure, the job ends for this node
  /// Throws: c10::Error if too few nodes joined
  std::optional<int> meet(int ranks, const Interrupted& interrupted);
  const std::optional<Failure>& over() const { return over_; }

  /// The part of the store for the ranks of this job.
  Store store_of_ranks() const;
  const std::string& host() const { return host_; }
  int port() const { return store_->port(); }
  int node_rank() const { return node_rank_; }
  int first_rank() const { return first_rank_; }  ///< first rank of this node in the current round
  int world_size() const { return world_size_; }

  /// Reports a failure of this node. Returns the first failure of the round, which may come from another node.
  Failure report(const Failure& failure);
  /// Returns a failure that another node reported, or the loss of a node. It also sends the heartbeat of this node, so
  /// call it several times a second.
  std::optional<Failure> heard();
  /// Reports that all ranks of this node have ended in this round.
  void ended();
  bool all_ended();
  std::string not_ended();  ///< the nodes whose ranks have not ended, such as "node 1, node 2"
  /// Leaves the job. Node 0 leaves last, because it serves the store.
  /// Params: failure – the failure that ended the job, or nothing
  void leave(const std::optional<Failure>& failure);

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    int node = 0, ranks = 0;
    std::string id;  ///< ID of the node's launcher; it changes when the node is restarted
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
  std::string id_, token_, host_ = "127.0.0.1";
  std::optional<Store> store_;
  std::optional<Store> job_;       ///< the part of the store for this job; empty on node 0
  std::optional<StoreView> view_;  ///< empty with a single node
  int round_ = -1, first_rank_ = 0, world_size_ = 0;
  std::vector<Member> members_;
  std::optional<Failure> over_;
  Clock::time_point last_beat_;
  int64_t beat_ = 0;
  std::map<int, Beat> beats_;  ///< last heartbeat of each other node, and the time when it changed
};

}  // namespace bellows::comm
