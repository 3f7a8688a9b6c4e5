#pragma once

#include <c10/util/Exception.h>

namespace bellows {

/// Disables a sink or writer after a failed write. All later writes and close() then throw, because the partial output
/// cannot be completed.
class WriteState {
 public:
  /// Throws: c10::Error if an earlier write failed
  void check(const char* who) const {
    TORCH_CHECK(!failed_, who, ": an earlier write failed, and nothing was put in place. Begin again with a new one.");
  }
  /// Throws: the exceptions of `body`; c10::Error if an earlier write failed
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
