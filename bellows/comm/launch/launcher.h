#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::comm {

struct LaunchOptions {
  std::vector<std::string> command;  ///< program and its arguments
  int ranks = 1;                     ///< on this machine
  int nodes = 1, node_rank = 0;      ///< number of machines, each with its own launcher
  std::string rendezvous;            ///< HOST:PORT of node 0; "": loopback and any free port
  int max_restarts = 0;              ///< number of new rounds of all ranks after failures
  /// Each new round has one rank fewer, but at least this many; 0: the same number. One machine only.
  int min_ranks = 0;
  /// A new round may begin without the lost nodes, with at least this many; 0: all nodes.
  int min_nodes = 0;
  double node_timeout_s = 30;  ///< a node without a heartbeat for this long is lost; then it has as long to return
};

/// Throws: c10::ValueError if options are invalid
void check_launch(const LaunchOptions& options);

/// The outcome of a launch.
struct LaunchResult {
  int exit_code = 0;       ///< of the first rank that failed: its exit code, or 128 + the signal that killed it
  int failed_rank = -1;    ///< -1: none, or a node was lost
  bool asked_for = false;  ///< stopped by a signal to the launcher, or by SIGINT or SIGTERM to a rank: not a failure
  std::string how;         ///< "was killed by signal 9 (Killed)"
  std::vector<std::string> last_lines;  ///< last lines of its output, at most 50
  int restarts = 0;
};

/// Receives one line of a rank's output, without the line break.
using OutputLine = std::function<void(int rank, bool error, std::string_view line)>;

/// Starts `ranks` processes of a program with torchrun's variables (RANK, WORLD_SIZE, …) and BELLOWS_TOKEN, serves
/// their store, and waits until they end. Their standard input is empty. Unless OMP_NUM_THREADS is set, it is set to an
/// equal share of the processors.
///
/// If a rank fails, the other ranks have 2 s to report errors. Then they get SIGTERM and, 2.5 s later, SIGKILL. Signals
/// go to the process group of each rank. If this process is killed, the ranks and their children are killed, too.
///
/// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded to the ranks. The first four request a stop:
/// when one rank has ended, the others have 30 s before they get SIGTERM. A second such signal kills the ranks. If a
/// single rank gets SIGINT or SIGTERM and ends by it, or with exit code 128 + signal, that also counts as a stop
/// request. Then the others have 30 s between SIGTERM and SIGKILL. No round follows a stop request.
///
/// With several nodes, the first round needs all of them. A lost node that is started again with the same options takes
/// part from the next round on. Node 0 serves the store and must not be lost.
/// Params:  on_line – called on this thread for each line of each rank on this machine
/// Threads: call it on the main thread before other threads start, because it blocks signals on this thread
/// Throws:  c10::ValueError if options are invalid, BELLOWS_TOKEN is missing with several nodes, the program does not
///          exist or the port is in use. c10::Error if nodes did not join
LaunchResult launch(const LaunchOptions& options, const OutputLine& on_line);

}  // namespace bellows::comm
