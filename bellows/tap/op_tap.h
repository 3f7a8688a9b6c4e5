#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>

namespace bellows::tap {

/// One operator call that an OpTap client receives.
class OpCall : public OpRef {
 public:
  using OpRef::OpRef;
  /// Runs the operator: calls the next outer client, or libtorch's kernel if there is no further client. The results
  /// replace the arguments on top of `stack`. A client may skip this call, or repeat it with different arguments.
  void next(Stack& stack) const;
};

/// Receives every operator below autograd and may change how the operator is executed.
///
/// - The client receives operators after autograd and autocast, also in backward. Composite operators arrive
///   decomposed. In inference mode, however, matmul, dropout and attention are not decomposed.
/// - In-place operators and views are received unchanged. detach() is received as aten::detach, but libtorch's internal
///   shallow copies are not received.
/// - A client must either call op.next(stack) or replace op.arguments(stack) with results that match the schema.
/// - Operators that a client calls run below autograd. Only the outer clients receive them.
/// - Exceptions propagate to the caller of the operator. The taps remain valid.
/// Numerics: while a tap is active, libtorch treats tensors like tensor subclasses, and some operators use different
///           kernels. docs/tap-bits.md lists the operators whose results differ. Use Observer if you only watch
///           operators
/// Threads:  called on each thread where the tap is installed or to which its context was carried (autograd's workers,
///           tap::ContextGuard). Calls may be concurrent
class OpTap {
 public:
  virtual ~OpTap() = default;
  virtual void call(const OpCall& op, Stack& stack) = 0;
  /// Returns whether the client must receive each operator when it is called. Compiled functions that are called under
  /// such a tap run eagerly, because their deferred operators would arrive later or not at all.
  virtual bool needs_each_call() const { return false; }
};

/// Returns whether a tap on this thread must receive each operator when it is called.
bool any_tap_needs_each_call();

/// Installs a tap on this thread while the guard exists. If taps are nested, the innermost client is called first, and
/// its next() calls the next outer client. When the guard has ended, no thread calls the client for new operators.
/// Threads: create and destroy guards on the same thread and in nested order. Otherwise, the destructor still removes
///          the tap, but logs an error
/// Cost:    one additional boxed dispatch per operator; measured by bench/taps
class OpTapGuard {
 public:
  /// Throws: c10::ValueError if `tap` is null
  explicit OpTapGuard(std::shared_ptr<OpTap> tap);
  ~OpTapGuard();
  OpTapGuard(const OpTapGuard&) = delete;
  OpTapGuard& operator=(const OpTapGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
