#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>

namespace bellows::tap {

/// Inspects each operator before it runs. It may refuse an operator by throwing an exception. The exception propagates
/// to the caller of the operator, and nothing is changed. Typical checks are "no random operator before seeding" and
/// "no implicit synchronization".
///
/// The check runs at the top of the dispatcher, above autocast and autograd. It first receives the operator that the
/// user calls, such as aten::linear, and then the operators of which it consists. Kernels and results are the same as
/// without a check. Operators that check() itself or a client of an OpTap calls are not checked.
/// Threads: called on each thread where the check is installed or to which its context was carried (autograd's workers,
///          tap::ContextGuard). Calls may be concurrent
class OpCheck {
 public:
  virtual ~OpCheck() = default;
  /// Throws: any exception to refuse the operator. Prefer std::exception, because autograd's workers preserve its
  ///         message
  virtual void check(const OpRef& op, Stack& stack) = 0;
};

/// Installs a check on this thread while the guard exists. Nested checks are called in the order of installation.
/// Threads: create and destroy guards on the same thread and in nested order. If you do not, the guard still ends, but
///          logs an error
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

/// While an object of this class exists, the operators that this thread calls are not checked. The same applies to work
/// that these operators start on other threads, such as collectives.
class UncheckedOperators {
 public:
  UncheckedOperators();
  ~UncheckedOperators();
  UncheckedOperators(const UncheckedOperators&) = delete;
  UncheckedOperators& operator=(const UncheckedOperators&) = delete;

 private:
  bool excluded_before_;
};

}  // namespace bellows::tap
