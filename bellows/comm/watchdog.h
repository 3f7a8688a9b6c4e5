#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/call_records.h"
#include "bellows/comm/rendezvous/peer.h"
#include "bellows/comm/rendezvous/store.h"
#include "bellows/core/mutex.h"

namespace bellows::comm {

/// A collective as one rank called it. The first collective of a group has the number 1.
struct Call {
  std::string group;
  int64_t number = 0;
  std::string what;  ///< for example "all_reduce Float[128]"
};

/// Diagnoses collectives that hang or fail. Every rank stores a note that lists its last calls. It updates the note
/// 0.25 s after a change, and every second as a heartbeat. If a call takes too long or fails, the watchdog reads the
/// notes of the other ranks. It then reports the ranks that did not call the collective, called a different collective,
/// ended or were stopped.
/// Cost:    a lock and a line of text per call, but no network traffic
/// Threads: thread-safe. The watchdog's thread keeps the object alive until leave()
class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  /// Params: peers – one process per rank of the world; warn_after_s – calls that take longer than this are reported
  static std::shared_ptr<Watchdog> start(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s);

  void add_group(const std::string& name, const std::vector<int>& ranks);
  /// Registers the calls by which one rank of a group sends to another one, if they are not registered yet. Their
  /// numbers start with 1.
  /// Params:  from, to – ranks within the group
  /// Returns: the name under which enter() numbers these calls, such as "world, 0 to 2" or "world, 0 to 2, tag 5"
  std::string add_channel(const std::string& group, int from, int to, int tag);
  /// Registers a call before it starts. Number 0 is the call that connects the group; the first collective has number
  /// 1.
  Call enter(const std::string& group, std::string what);
  /// Reports that the call has started. It counts as running until done() returns true.
  void started(const Call& call, std::function<bool()> done);
  void finished(const Call& call);
  /// Returns whether a call of this group is running.
  bool is_busy(const std::string& group);

  /// Describes the ranks that caused a call to fail. The text is empty if no rank did. The function waits at most 5 s
  /// for new notes of the other ranks. It also marks this rank as failed in the note that the other ranks read.
  std::string explain(const Call& call);
  /// Returns explain() as an error message. After the first failure of a group, later failures repeat the first
  /// explanation.
  std::string error_text(const Call& call, const std::string& reason);
  /// Reports to the other ranks that this rank leaves.
  void leave();

  /// The records of the calls of all groups, for CallLog.
  CallRecords& records() { return records_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    Call call;
    Clock::time_point since;
    std::function<bool()> done;
    double next_warning_s = 0;  ///< waiting time in seconds until the next warning
  };
  /// The last note of a rank.
  struct Note {
    int64_t beat = 0;
    std::string end;  ///< "left" or "failed"; empty while the rank runs
    std::map<std::string, std::map<int64_t, std::string>> calls;
  };
  /// The ranks of a group, or of calls between two of its ranks.
  struct Members {
    std::vector<int> callers;   ///< the ranks that make the calls
    std::vector<int> all = {};  ///< the ranks of the group, whose end can be the cause of a failure
    bool between_two = false;   ///< calls by which one rank sends to another one
  };
  struct Blame {
    std::string text;
    std::vector<int> ranks;
    void add(int rank, const std::string& trouble);
  };

  Watchdog(const Store& store, int rank, std::vector<Peer> peers, double warn_after_s);
  void run();
  void write_note(const Store& store) BELLOWS_EXCLUDES(mutex_);
  void warn_of_long_calls() BELLOWS_EXCLUDES(mutex_);
  Members members_of(const std::string& group) const BELLOWS_EXCLUDES(mutex_);
  Note read_note(int rank) const;
  Blame examine(const Call& call) const;
  bool is_gone(int rank, const Note& note) const;
  Note fresh_note(int rank, Clock::time_point end, bool& silent) const;
  std::string trouble_of(int rank, const Call& call, const Note& note, bool silent) const;
  std::string end_of_other_member(int rank, const Note& note) const;

  const Store store_;
  const int rank_;
  const std::vector<Peer> peers_;
  const double warn_after_s_;
  mutable Mutex mutex_;
  ConditionVariable wake_;
  std::map<std::string, Members> groups_ BELLOWS_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<Call>> calls_ BELLOWS_GUARDED_BY(mutex_);  ///< the last calls of each group
  std::deque<Running> running_ BELLOWS_GUARDED_BY(mutex_);
  std::map<std::string, std::string> blames_
      BELLOWS_GUARDED_BY(mutex_);  ///< explanations by the name of the failed group
  std::string end_ BELLOWS_GUARDED_BY(mutex_);
  int64_t beat_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool changed_ BELLOWS_GUARDED_BY(mutex_) = true;
  bool ended_ BELLOWS_GUARDED_BY(mutex_) = false;
  CallRecords records_;  ///< has its own lock
};

}  // namespace bellows::comm
