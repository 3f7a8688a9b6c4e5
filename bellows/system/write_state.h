#pragma once

#include <c10/util/Exception.h>

namespace bellows {

/// Makes a sink or writer refuse all further writes and close() after a failed write, because its partial output cannot
/// be continued.
class WriteState {
 public:
  /// Throws: c10::Error if an earlier write failed
  void check(const char* who) const {
    TORCH_CHECK(!failed_, who, ": an earlier write failed, and nothing was put in place. Begin again with a new one.");
  }
  /// Throws: exceptions of `body`; like check()
  template <class Body>
  void run(const char* who, const Body& body) {
    check(who);
    failed_ = true;
    body();
    failed_ = false;
  }

 private:
  bool failed_ = false;
};

}  // namespace bellows
