#pragma once

#include <optional>
#include <vector>

#include "bellows/comm/call_log.h"
#include "bellows/core/mutex.h"

namespace bellows::comm {

/// The calls of a world, while a CallLog exists. Private to the component.
/// Threads: thread-safe
class CallRecords {
 public:
  /// Starts with an empty list.
  void start() BELLOWS_EXCLUDES(mutex_);
  void stop() BELLOWS_EXCLUDES(mutex_);
  /// Records the start of a call.
  /// Returns: the number of the call for end(); -1 if calls are not recorded
  int64_t begin(const std::string& group, const std::string& what, int64_t bytes) BELLOWS_EXCLUDES(mutex_);
  /// Records the end of a call. Only the first end counts.
  void end(int64_t number) BELLOWS_EXCLUDES(mutex_);
  std::vector<RecordedCall> finished() const BELLOWS_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  bool on_ BELLOWS_GUARDED_BY(mutex_) = false;
  int64_t first_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< number of the first call in the list
  std::vector<RecordedCall> calls_ BELLOWS_GUARDED_BY(mutex_);
};

/// Returns the name of a call as one word: "all_reduce" for "all_reduce Float[128]".
std::string call_name(const std::string& what);

}  // namespace bellows::comm
