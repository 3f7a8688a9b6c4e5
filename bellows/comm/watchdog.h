#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

/// A collective as one rank called it: the n-th call of its group.
struct Call {
  std::string group;
  int64_t number = 0;
  std::string what;  ///< "all_reduce Float[128]"
};

/// Diagnoses hanging and failed collectives. Every rank writes its last calls to the store: 0.25 s after a change, and
/// every second as a heartbeat. If a call takes long or fails, the watchdog reads the notes of the other ranks. It
/// reports ranks that did not call the collective, called another one, ended or were stopped.
/// Cost:    a lock and a line of text per call, no network traffic
/// Threads: safe. Its thread keeps it alive until leave()
class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  /// Params: peers – one per rank of the world; warn_after_s – a call that takes longer is reported
  static std::shared_ptr<Watchdog> start(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s);

  void add_group(const std::string& name, const std::vector<int>& ranks);
  /// Registers a call before it starts. Number 0 is connecting the group; the first collective is number 1.
  Call enter(const std::string& group, std::string what);
  /// The call has started; it runs until done() returns true.
  void started(const Call& call, std::function<bool()> done);
  void finished(const Call& call);
  /// Returns whether a call of this group is running.
  bool is_busy(const std::string& group);

  /// Describes which ranks caused a failed call; "" if none did. Waits at most 5 s for new notes of the others. Marks
  /// this rank as failed for the others.
  std::string explain(const Call& call);
  /// Formats explain() as an error. Later failures of the group repeat the explanation of its first failure.
  std::string error_text(const Call& call, const std::string& reason);
  /// Reports that this rank leaves.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    Call call;
    Clock::time_point since;
    std::function<bool()> done;
    double next_warning_s = 0;  ///< waiting time until the next warning
  };
  /// The last note of a rank.
  struct Note {
    int64_t beat = 0;
    std::string end;  ///< "left", "failed", or "" while it runs
    std::map<std::string, std::map<int64_t, std::string>> calls;
  };
  struct Blame {
    std::string text;
    std::vector<int> ranks;
    void add(int rank, const std::string& trouble);
  };

  Watchdog(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s);
  void run();
  void write_note(const Store& store);
  void warn_of_long_calls();
  std::vector<int> ranks_of(const std::string& group) const;
  Note read_note(int rank) const;
  Blame examine(const Call& call) const;
  bool is_gone(int rank, const Note& note) const;
  Note fresh_note(int rank, Clock::time_point end, bool& silent) const;
  std::string trouble_of(int rank, const Call& call, const Note& note, bool silent) const;

  const Store store_;
  const int rank_;
  const std::vector<Peer> peers_;
  const double warn_after_s_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, std::vector<int>> groups_;
  std::map<std::string, std::deque<Call>> calls_;  ///< the last calls of each group
  std::deque<Running> running_;
  std::map<std::string, std::string> blames_;  ///< explanations, by failed group
  std::string end_;
  int64_t beat_ = 0;
  bool changed_ = true, ended_ = false;
};

}  // namespace bellows::comm
