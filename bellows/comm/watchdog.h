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

/// A collective as one rank called it: the n-th of its group.
struct Call {
  std::string group;
  int64_t number = 0;
  std::string what;  ///< "all_reduce Float[128]"
};

/// Knows what each rank is doing. Every rank writes its last calls into the store: a quarter of a second after they
/// changed, and once a second as a sign of life. When a call takes long, or fails, the notes of the others tell who is
/// missing in it, who called something else, who has ended or was stopped.
/// Cost:    of a call: a lock and a line of text; nothing goes over the network for it
/// Threads: safe. Its thread keeps it alive until leave()
class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  /// Params: peers – one a rank of the world; warn_after_s – when a call is long enough for a warning
  static std::shared_ptr<Watchdog> start(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s);

  void add_group(const std::string& name, const std::vector<int>& ranks);
  /// This rank is about to call. Number 0 is the connecting of the group, the first collective is number 1.
  Call enter(const std::string& group, std::string what);
  /// It runs, until done() says otherwise.
  void started(const Call& call, std::function<bool()> done);
  void finished(const Call& call);
  /// Does a call of this group run?
  bool is_busy(const std::string& group);

  /// Who is to blame for a call that failed, in words; "" where nobody is. Waits until the others' notes are fresh, at
  /// most 5 s. Tells the others that this rank failed, too.
  std::string explain(const Call& call);
  /// The same as the call's error. The group's first failure explains its later ones, too.
  std::string error_text(const Call& call, const std::string& reason);
  /// This rank goes.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    Call call;
    Clock::time_point since;
    std::function<bool()> done;
    double next_warning_s = 0;  ///< after how long a wait
  };
  /// What a rank wrote last.
  struct Note {
    int64_t beat = 0;
    std::string end;  ///< "left", "failed", or "" while it is there
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
  std::map<std::string, std::deque<Call>> calls_;  ///< the last of each group
  std::deque<Running> running_;
  std::map<std::string, std::string> blames_;  ///< of the groups that failed
  std::string end_;
  int64_t beat_ = 0;
  bool changed_ = true, ended_ = false;
};

}  // namespace bellows::comm
