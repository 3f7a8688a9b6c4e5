#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

struct LaunchOptions {
  std::vector<std::string> command;  ///< the program and its arguments
  int ranks = 1;                     ///< number of ranks on this machine
  /// Number of machines (nodes), and rank of this node, starting at 0. Each node runs its own launcher.
  int nodes = 1, node_rank = 0;
  /// HOST:PORT of node 0. If empty, the loopback address and any free port.
  std::string rendezvous;
  /// Maximum number of restarts. After a failure, all ranks are restarted in a new round.
  int max_restarts = 0;
  /// After each failure, the next round has one rank fewer, but at least this many. 0: always the same number of ranks.
  /// Only for jobs on one machine.
  int min_ranks = 0;
  /// If a rank fails, the other ranks continue, and a new process takes its place. If no complete replica of the model is
  /// left, all ranks are restarted. Both count for `max_restarts`. Only for jobs on one machine, whose program uses an
  /// ElasticWorld (elastic/elastic_world.h).
  bool replace_lost = false;
  /// A later round may begin without lost nodes if at least this many nodes take part. 0: all nodes must take part.
  int min_nodes = 0;
  /// A node that sends no heartbeat for this long counts as lost. After that, it has the same time to return.
  double node_timeout_s = 30;
};

/// Throws: c10::ValueError if an option is invalid
void check_launch(const LaunchOptions& options);

/// The outcome of a launch.
struct LaunchResult {
  /// Exit code of the first rank that failed, or 128 + the number of the signal that killed this rank. 1 if a node was
  /// lost. 128 + the number of the signal if the launcher was stopped before a round.
  int exit_code = 0;
  int failed_rank = -1;  ///< -1 if no rank failed, or if a node was lost
  /// Whether a signal to the launcher, or SIGINT or SIGTERM to a rank, stopped the job. This is not a failure. False if
  /// all ranks exit with 0.
  bool asked_for = false;
  std::string how;                      ///< for example "was killed by signal 9 (Killed)"
  std::vector<std::string> last_lines;  ///< the last lines of the failed rank's output, at most 50 lines
  int restarts = 0;
};

/// Receives one line of a rank's output. The line does not include the line break.
using OutputLine = std::function<void(int rank, bool error, std::string_view line)>;

/// Starts `ranks` processes of a program, serves their store, and waits until they end. The processes get torchrun's
/// environment variables (RANK, WORLD_SIZE, …) and BELLOWS_TOKEN. Their standard input is empty. If OMP_NUM_THREADS is
/// not set, each process gets an equal share of the processors.
///
/// If a rank fails, the other ranks have 2 s to report errors. Then they get SIGTERM and, 2.5 s later, SIGKILL. Signals
/// are sent to the process group of each rank. If the launcher itself is killed, the ranks and their child processes
/// are killed, too.
///
/// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded to the ranks. The first four signals request a
/// stop. After a stop request, as soon as one rank has ended, the other ranks have 30 s before they get SIGTERM. A
/// second stop request kills the ranks.
///
/// If SIGINT or SIGTERM kills a rank, or a rank exits with code 130 or 143, this also counts as a stop request. In this
/// case, the other ranks have 30 s between SIGTERM and SIGKILL. After a stop request, no further round starts.
///
/// With several nodes, the first round needs all nodes. If a lost node is started again with the same options, it takes
/// part from the next round on. Node 0 serves the store, so the job cannot continue without it.
/// Params:  on_line – called on this thread for each line of output of each rank on this machine
/// Threads: call it on the main thread before other threads start, because it blocks signals on this thread
/// Throws:  c10::ValueError if an option is invalid, if BELLOWS_TOKEN is missing with several nodes, if the program
///          does not exist, or if the port is in use. c10::Error if nodes did not join, or if the limit of
///          open files is too low
LaunchResult launch(const LaunchOptions& options, const OutputLine& on_line);

}  // namespace bellows::comm
