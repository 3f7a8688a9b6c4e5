#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"

namespace bellows::comm {

class Watchdog;

/// A collective or a point-to-point call of this rank that has finished.
struct RecordedCall {
  std::string name{};   ///< such as "all_reduce"
  std::string group{};  ///< name of the group, such as "world/gradients"
  int64_t bytes = 0;    ///< total size of this rank's own tensors, see Traffic
  double start_us = 0;  ///< when this rank called it, on the clock of trace_now_us()
  double end_us = 0;    ///< when it had finished on this rank
};

/// Records the calls of all groups of a world while it exists. Only one log per world can exist at a time.
///
/// The time in which a thread waits for a call is a scope of record_function, whose name begins with wait_scope_prefix.
/// Traces therefore show it without a log.
/// Cost:    a lock and about 100 bytes per call
/// Threads: thread-safe
class CallLog {
 public:
  /// Params: group – any group of the world
  /// Throws: c10::ValueError if the world already has a log
  explicit CallLog(const Group& group);
  ~CallLog();
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  /// Returns the finished calls, in the order in which they began.
  std::vector<RecordedCall> calls() const;

 private:
  std::shared_ptr<Watchdog> watchdog_;  ///< has the records; null in a group of one rank
};

}  // namespace bellows::comm
