#pragma once

#include <c10/util/Exception.h>

namespace bellows {

/// What is half written cannot be gone on with: after a write that failed, a sink or a writer refuses all
/// others, and close().
class WriteState {
 public:
  /// Throws: c10::Error – an earlier write failed
  void check(const char* who) const {
    TORCH_CHECK(!failed_, who, ": an earlier write failed, and nothing was put in place. Begin again with a new one.");
  }
  /// Throws: what body throws; as check
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
