#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>

namespace bellows::tap {

/// Looks at each operator before it runs and may refuse it by throwing: the exception leaves the operator's call, and
/// nothing has been changed. For guards such as "no random operator before seeding", "no implicit synchronization".
///
/// Sits at the top of the dispatcher, above autocast and autograd: the user's call arrives first (aten::linear), then
/// the operators it is made of. The kernels and bits are those of a plain run. Operators that check() itself issues, or
/// that a client of an OpTap issues, are not checked.
/// Threads: called on each thread where it is installed, or carried to: autograd's workers, tap::ContextGuard. Calls
///          may be concurrent.
class OpCheck {
 public:
  virtual ~OpCheck() = default;
  /// Throws: anything; std::exception by preference, autograd's workers pass on its text
  virtual void check(const OpRef& op, Stack& stack) = 0;
};

/// Installs a check on this thread while it lives. Several nest: asked in order of installation.
/// Threads: make and destroy it on one thread, in nested order; otherwise it still ends, and the log says so.
class OpCheckGuard {
 public:
  /// Throws: c10::ValueError – null
  explicit OpCheckGuard(std::shared_ptr<OpCheck> check);
  ~OpCheckGuard();
  OpCheckGuard(const OpCheckGuard&) = delete;
  OpCheckGuard& operator=(const OpCheckGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
