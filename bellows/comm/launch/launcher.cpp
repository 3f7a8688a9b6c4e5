#include "bellows/comm/launch/launcher.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "bellows/comm/elastic/member_list.h"
#include "bellows/comm/launch/launch_environment.h"
#include "bellows/comm/launch/nodes.h"
#include "bellows/comm/launch/rank_process.h"
#include "bellows/comm/rendezvous/wait_report.h"
#include "bellows/core/log.h"
#include "bellows/system/machine.h"
#include "bellows/system/random_token.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds grace_to_speak = 2s, grace_to_end = 2500ms, grace_after_stop = 30s;

std::string signal_name(int signal) {
  return "SIG" + std::string(sigabbrev_np(signal));
}

/// Whether a rank ended because of a stop request: killed by the signal, or with its exit code.
bool ended_as_asked(const RankProcess& process) {
  return process.exit_code() == 128 + SIGINT || process.exit_code() == 128 + SIGTERM;
}

/// Returns BELLOWS_TOKEN, or a new token if there is only one node.
std::string job_token(const LaunchOptions& options) {
  const char* given = std::getenv("BELLOWS_TOKEN");
  if (given && *given) return given;
  TORCH_CHECK_VALUE(options.nodes == 1, "launch: the environment variable BELLOWS_TOKEN is not set, but all ",
                    options.nodes,
                    " nodes need the same secret. Run `export BELLOWS_TOKEN=$(openssl rand -hex 16)` once, and copy "
                    "the value to the other nodes.");
  return random_token();
}

/// Checks before the first rank starts that the limit of open files is high enough. The check uses a lower
/// bound, because it does not count the connections of the ranks to the store.
void check_open_files(int ranks) {
  constexpr rlim_t for_launcher = 15, per_rank = 2, during_start = 4;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlim_t needed = for_launcher + per_rank * static_cast<rlim_t>(ranks) + during_start;
  std::error_code ignored;
  for (auto file = std::filesystem::directory_iterator("/proc/self/fd", ignored);
       file != std::filesystem::directory_iterator(); file.increment(ignored))
    ++needed;
  TORCH_CHECK(needed <= limit.rlim_cur, "launch: ", ranks, ranks == 1 ? " rank needs" : " ranks need", " at least ",
              needed, " open files, but the limit of this process is ", limit.rlim_cur,
              " (ulimit -n). Raise the limit, for example with `ulimit -n 4096`, or start fewer ranks.");
}

/// Runs the ranks of this node from start to end.
class Round {
 public:
  /// Params: replaced – number of processes that were replaced in earlier rounds
  Round(const LaunchOptions& options, std::string token, int number, int ranks, int replaced, const Signals& signals,
        Guard& guard, Nodes& nodes, const OutputLine& on_line)
      : options_(options),
        token_(std::move(token)),
        number_(number),
        ranks_(ranks),
        signals_(signals),
        guard_(guard),
        nodes_(nodes),
        on_line_(on_line),
        replaced_(replaced) {
    if (options.replace_lost) members_.emplace(nodes.store_of_ranks().under(members_prefix(number)), ranks);
  }

  /// Returns the first failure on any node, or nothing.
  std::optional<Failure> run();
  /// Number of processes that took the place of lost ones, also in earlier rounds.
  int replaced() const { return replaced_; }

 private:
  struct Slot {
    std::unique_ptr<RankProcess> process;
    int id;  ///< of the process in members_
  };
  void start(size_t slot, int id);
  bool replace(Slot& slot);
  bool is_left_over(const Slot& slot) const;
  void end_left_over();
  bool running() const;
  void wait_for_events();
  void pass_on_signals();
  std::string running_ranks() const;
  void reap();
  void end_the_others();
  void send(int signal) const;
  void note(const Failure& failure);
  void wait_for_other_nodes();

  const LaunchOptions& options_;
  const std::string token_;
  const int number_, ranks_;
  const Signals& signals_;
  Guard& guard_;
  Nodes& nodes_;
  const OutputLine& on_line_;
  std::vector<Slot> slots_;
  std::optional<MemberList> members_;  ///< if lost ranks are replaced
  int replaced_;
  bool finished_ = false;  ///< a rank has ended without an error
  std::optional<Failure> failure_;
  std::optional<WaitReport> ending_;            ///< since the ranks should end
  std::optional<Clock::time_point> first_end_;  ///< when the first rank failed, or ended after a stop request
  bool stop_ = false, terminated_ = false, killed_ = false;
};

std::vector<std::string> rank_environment(Variables variables, int local_rank, int ranks, int round, int max_restarts,
                                          const Nodes& nodes, const std::string& token, std::optional<int> member) {
  const int rank = nodes.first_rank() + local_rank;
  variables["RANK"] = variables["ROLE_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["ROLE_WORLD_SIZE"] = std::to_string(nodes.world_size());
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  variables["MASTER_ADDR"] = nodes.host();
  variables["MASTER_PORT"] = std::to_string(nodes.port());
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(round);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(max_restarts);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["BELLOWS_TOKEN"] = token;
  variables["BELLOWS_LAUNCHER"] = "bellows launch";
  if (member) variables["BELLOWS_MEMBER"] = std::to_string(*member);
  variables.erase("BELLOWS_STORE");  // the launcher serves a store
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

void Round::start(size_t slot, int id) {
  Variables shared = environment_variables();
  if (shared["OMP_NUM_THREADS"].empty())
    shared["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(this_machine().usable_threads() / ranks_, 1));
  const int local = static_cast<int>(slot);
  slots_.resize(std::max(slots_.size(), slot + 1));
  slots_[slot] = {
      std::make_unique<RankProcess>(nodes_.first_rank() + local, options_.command,
                                    rank_environment(shared, local, ranks_, number_, options_.max_restarts, nodes_,
                                                     token_, members_ ? std::optional(id) : std::nullopt),
                                    signals_),
      id};
  guard_.add(slots_[slot].process->pid());
}

/// Starts a new process in the place of one that failed. Returns false if the job cannot continue.
bool Round::replace(Slot& slot) {
  const bool stops = stop_ || failure_ || finished_ || ended_as_asked(*slot.process);
  if (!stops && number_ + replaced_ >= options_.max_restarts) return false;
  if (!members_->can_spare(slot.id)) return false;
  members_->remove(slot.id);  // the others continue, if only to stop and to save a checkpoint
  if (stops) return false;
  log_warn("launch: rank ", slot.process->rank(), " ", slot.process->how(), ". The other ranks continue, and a new ",
           "process takes its place (", ++replaced_, " of at most ", options_.max_restarts, ").");
  const auto place = &slot - slots_.data();
  start(static_cast<size_t>(place), members_->add(static_cast<int>(place)));
  return true;
}

/// Whether the process has nothing left to do: the ranks have finished or are stopping, and it does not take part.
/// Original ranks of a program without an ElasticWorld never join a world, but they always take part.
bool Round::is_left_over(const Slot& slot) const {
  if (!members_ || (!finished_ && !stop_)) return false;
  const bool is_replacement = slot.id >= ranks_;
  return !members_->takes_part(slot.id) || (finished_ && is_replacement && !members_->has_joined(slot.id));
}

void Round::end_left_over() {
  for (const Slot& slot : slots_) {
    if (slot.process->running() && is_left_over(slot)) slot.process->send(SIGKILL);
  }
}

bool Round::running() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.process->running(); });
}

void Round::wait_for_events() {
  std::vector<pollfd> events = {{signals_.fd(), POLLIN, 0}};
  for (const Slot& slot : slots_) {
    for (const int output : slot.process->outputs()) events.push_back({output, POLLIN, 0});
  }
  poll(events.data(), events.size(), 100);
  for (const Slot& slot : slots_) slot.process->read_output(on_line_);
}

void Round::pass_on_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) continue;
    send(stop_ && asks_to_stop(signal) ? SIGKILL : signal);
    if (!asks_to_stop(signal)) continue;
    if (!stop_)
      log_info("launch: received ", signal_name(signal), " and passed it to the ranks. Waiting for ", running_ranks(),
               " to end. A second signal kills the ranks.");
    stop_ = true;
  }
}

void Round::send(int signal) const {
  for (const Slot& slot : slots_) slot.process->send(signal);
}

void Round::note(const Failure& failure) {
  if (!failure_) failure_ = failure;
  if (!first_end_) first_end_ = Clock::now();
}

/// "rank 1 (pid 42)"
std::string Round::running_ranks() const {
  std::string ranks;
  for (const auto& [process, id] : slots_) {
    if (process->running())
      ranks += c10::str(ranks.empty() ? "" : ", ", "rank ", process->rank(), " (pid ", process->pid(), ")");
  }
  return ranks;
}

void Round::reap() {
  for (Slot& slot : slots_) {
    if (!slot.process->reap(on_line_)) continue;
    guard_.remove(slot.process->pid());
    if (stop_ && !first_end_) first_end_ = Clock::now();
    if (slot.process->exit_code() == 0) {
      finished_ = true;
    } else if (!is_left_over(slot) && (!members_ || !replace(slot))) {
      const Failure failure{.rank = slot.process->rank(),
                            .exit_code = slot.process->exit_code(),
                            .how = slot.process->how(),
                            .last_lines = slot.process->last_lines(),
                            .asked_for = stop_ || ended_as_asked(*slot.process)};
      note(failure_ ? *failure_ : nodes_.report(failure));
    }
  }
  if (!members_) return;
  if (!stop_ && !failure_ && !finished_) members_->admit_ready();
  end_left_over();
}

void Round::end_the_others() {
  if (stop_ || first_end_) {
    if (!ending_) ending_.emplace("launch: node " + std::to_string(nodes_.node_rank()), 0);
    ending_->report([&] { return running_ranks() + " to end"; });
  }
  if (!first_end_) return;
  const auto since = Clock::now() - *first_end_;
  const auto patience = stop_ ? grace_after_stop : grace_to_speak;
  const auto more = !stop_ && failure_ && failure_->asked_for ? grace_after_stop : grace_to_end;
  if (since > patience && !terminated_) {
    terminated_ = true;
    send(SIGTERM);
  }
  if (since > patience + more && !killed_) {
    killed_ = true;
    send(SIGKILL);
  }
}

/// Waits until the ranks of other nodes end, because one of them may still fail.
void Round::wait_for_other_nodes() {
  nodes_.ended();
  WaitReport wait("launch: node " + std::to_string(nodes_.node_rank()), 0);
  while (!stop_ && !first_end_ && !nodes_.all_ended()) {
    wait_for_events();
    pass_on_signals();
    if (const auto heard = nodes_.heard()) note(*heard);
    wait.report([&] { return nodes_.not_ended() + " to end"; });
  }
}

std::optional<Failure> Round::run() {
  for (int slot = 0; slot < ranks_; ++slot) start(static_cast<size_t>(slot), slot);
  while (running()) {
    wait_for_events();
    pass_on_signals();
    reap();
    guard_.replace_if_lost();
    if (const auto heard = nodes_.heard()) note(*heard);
    end_the_others();
  }
  wait_for_other_nodes();
  return failure_;
}

LaunchResult result_of(const std::optional<Failure>& failure, int restarts) {
  if (!failure) return {.restarts = restarts};
  return {.exit_code = failure->exit_code,
          .failed_rank = failure->rank,
          .asked_for = failure->asked_for,
          .how = failure->how,
          .last_lines = failure->last_lines,
          .restarts = restarts};
}

}  // namespace

void check_launch(const LaunchOptions& options) {
  TORCH_CHECK_VALUE(!options.command.empty(), "launch: expected a program to start, got none.");
  TORCH_CHECK_VALUE(options.ranks > 0, "launch: expected at least 1 rank, got ", options.ranks, ".");
  TORCH_CHECK_VALUE(options.nodes > 0 && options.node_rank >= 0 && options.node_rank < options.nodes,
                    "launch: got node rank ", options.node_rank, " of ", options.nodes, ", expected 0 to ",
                    std::max(options.nodes, 1) - 1, ".");
  TORCH_CHECK_VALUE(options.nodes == 1 || !options.rendezvous.empty(), "launch: ", options.nodes,
                    " nodes need an address at which they can meet. Set `rendezvous` to HOST:PORT of node 0.");
  TORCH_CHECK_VALUE(options.max_restarts >= 0, "launch: expected 0 or more restarts, got ", options.max_restarts, ".");
  TORCH_CHECK_VALUE(options.min_ranks >= 0 && options.min_ranks <= options.ranks,
                    "launch: expected `min_ranks` from 1 to ", options.ranks, ", got ", options.min_ranks, ".");
  TORCH_CHECK_VALUE(options.min_ranks == 0 || options.nodes == 1, "launch: `min_ranks` works only with one node.");
  TORCH_CHECK_VALUE(!options.replace_lost || (options.nodes == 1 && options.min_ranks == 0),
                    "launch: `replace_lost` works only with one node, and without `min_ranks`.");
  TORCH_CHECK_VALUE(!options.replace_lost || options.max_restarts > 0,
                    "launch: `replace_lost` needs `max_restarts`, the number of processes that may be replaced.");
  TORCH_CHECK_VALUE(options.min_nodes >= 0 && options.min_nodes <= options.nodes,
                    "launch: expected `min_nodes` from 1 to ", options.nodes, ", got ", options.min_nodes, ".");
  TORCH_CHECK_VALUE(options.node_timeout_s > 0, "launch: expected a node timeout above 0 s, got ",
                    options.node_timeout_s, ".");
}

LaunchResult launch(const LaunchOptions& options, const OutputLine& on_line) {
  check_launch(options);
  check_open_files(options.ranks);
  const std::string token = job_token(options);
  Guard guard;            // before threads start
  const Signals signals;  // before the threads of the store start, so that they inherit the blocked signals
  const auto interrupted = [&]() -> std::optional<Failure> {
    while (const int signal = signals.next()) {
      if (asks_to_stop(signal))
        return Failure{.exit_code = 128 + signal, .how = "The launcher received a stop signal", .asked_for = true};
    }
    return std::nullopt;
  };
  Nodes nodes(options, token, interrupted);
  int ranks = options.ranks, replaced = 0;
  std::optional<Failure> failure;
  for (int restarts = 0;; ++restarts) {
    const auto round = nodes.meet(ranks, interrupted);
    if (!round) {
      nodes.leave(nodes.over());
      return result_of(nodes.over(), restarts);
    }
    restarts = *round;  // a node that was lost has missed some rounds
    if (failure) {
      log_warn("launch: ", failure->who_and_how(), ". Restarting all ", nodes.world_size(), " ranks (restart ",
               restarts, " of at most ", options.max_restarts, ").");
    }
    Round of_ranks(options, token, restarts, ranks, replaced, signals, guard, nodes, on_line);
    failure = of_ranks.run();
    replaced = of_ranks.replaced();
    if (!failure || failure->asked_for || failure->is_last || restarts + replaced >= options.max_restarts) {
      nodes.leave(failure);
      return result_of(failure, restarts + replaced);
    }
    if (options.min_ranks > 0) ranks = std::max(ranks - 1, options.min_ranks);
  }
}

}  // namespace bellows::comm
