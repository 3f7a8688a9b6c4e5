#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

struct LaunchOptions {
  std::vector<std::string> command;  ///< program and its arguments
  int ranks = 1;                     ///< on this machine
  int nodes = 1, node_rank = 0;      ///< machines, each with a launcher of its own
  std::string rendezvous;            ///< HOST:PORT of node 0; "": loopback, and any port that is free
  int max_restarts = 0;              ///< how often a failure leads to a new round of all ranks
  int min_ranks = 0;  ///< each such round has a rank less, down to this; 0: as many as before. One machine only
  int min_nodes = 0;  ///< such a round may begin without the nodes that are lost, down to this many; 0: all are needed
  double node_timeout_s = 30;  ///< without a sign of life a node is lost; then it has as long to come back
};

/// Throws: c10::ValueError – options that make no sense
void check_launch(const LaunchOptions& options);

/// How a launch ended.
struct LaunchResult {
  int exit_code = 0;                    ///< of the first rank that failed: its own, or 128 + the signal that ended it
  int failed_rank = -1;                 ///< the first one; -1: none, or a whole node
  bool asked_for = false;               ///< by a signal to the launcher, or SIGINT or SIGTERM to a rank: no failure
  std::string how;                      ///< "was killed by signal 9 (Killed)"
  std::vector<std::string> last_lines;  ///< of its output, at most 50
  int restarts = 0;
};

/// Takes one line of a rank's output, without its end.
using OutputLine = std::function<void(int rank, bool error, std::string_view line)>;

/// Starts `ranks` processes of a program with torchrun's variables (RANK, WORLD_SIZE, …) and BELLOWS_TOKEN, serves their
/// store, and waits for their end. Their standard input is empty. OMP_NUM_THREADS is set to an equal share of the
/// processors unless it is set already.
///
/// When a rank fails, the others have 2 s to say what they saw, then get SIGTERM, after 2.5 s more SIGKILL: each with all
/// processes of its group. They also end if this process is killed, with their children. SIGINT, SIGTERM, SIGHUP, SIGQUIT,
/// SIGUSR1 and SIGUSR2 are passed on; after one of the first four the ranks may take their time, and a second one kills.
/// So may the others when one rank alone got SIGINT or SIGTERM and ended by it, or with 128 + its number: that, too, is a
/// request to stop, after which no round follows.
///
/// On several nodes the first round needs all of them. A node that was lost and started again, with the same options, takes
/// part from the next round on; node 0 keeps the store and has to stay.
/// Params:  on_line – called from this thread, for every line of every rank of this machine
/// Threads: from the main thread, before it has started others: it blocks signals in this thread
/// Throws:  c10::ValueError – options that make no sense, several nodes without BELLOWS_TOKEN, no such program, a port in
///          use; c10::Error – nodes that did not come
LaunchResult launch(const LaunchOptions& options, const OutputLine& on_line);

}  // namespace bellows::comm
