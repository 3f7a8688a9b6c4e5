#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>

namespace bellows::tap {

/// Inspects each operator before it runs and may refuse it by throwing. The exception leaves the operator's call, and
/// nothing has been changed. Typical checks: "no random operator before seeding", "no implicit synchronization".
///
/// The check sits at the top of the dispatcher, above autocast and autograd. It first receives the user's call
/// (aten::linear), then the operators that this call consists of. Kernels and results are the same as without a check.
/// Operators called by check() itself or by a client of an OpTap are not checked.
/// Threads: called on each thread where it is installed or to which its context was carried (autograd's workers,
///          tap::ContextGuard). Calls may be concurrent.
class OpCheck {
 public:
  virtual ~OpCheck() = default;
  /// Throws: any exception to refuse the operator. Prefer std::exception, because autograd's workers pass on its text.
  virtual void check(const OpRef& op, Stack& stack) = 0;
};

/// Installs a check on this thread while the guard lives. Checks can nest and are called in the order of installation.
/// Threads: create and destroy the guard on the same thread, in nested order. Otherwise it still ends, and an error is
///          logged.
class OpCheckGuard {
 public:
  /// Throws: c10::ValueError if `check` is null
  explicit OpCheckGuard(std::shared_ptr<OpCheck> check);
  ~OpCheckGuard();
  OpCheckGuard(const OpCheckGuard&) = delete;
  OpCheckGuard& operator=(const OpCheckGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
