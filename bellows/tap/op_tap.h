#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>

namespace bellows::tap {

/// One operator call that an OpTap client handles.
class OpCall : public OpRef {
 public:
  using OpRef::OpRef;
  /// Runs the call: calls the next outer client, or libtorch's kernel after the last one. Replaces the arguments on top
  /// of `stack` by the results. The client may omit it, or call it several times with other arguments.
  void next(Stack& stack) const;
};

/// Receives every operator below autograd and may change how it is executed.
///
/// - The client receives operators after autograd and autocast, also in backward. Composite operators arrive
///   decomposed. Exception: in inference mode, matmul, dropout and attention arrive whole. detach() arrives as
///   aten::detach, but libtorch's internal shallow copies do not. In-place operators and views arrive as such.
/// - A client either calls op.next(stack), or replaces op.arguments(stack) by results that match the schema.
/// - Operators that a client calls itself run below autograd. Only the outer clients receive them.
/// - Exceptions leave through the operator's call. The taps remain valid afterwards.
/// Numerics: while a tap is active, libtorch treats tensors like subclasses, and some operators use other kernels.
///           docs/tap-bits.md lists the operators whose results differ. To watch only, use Observer.
/// Threads:  called on each thread where it is installed or to which its context was carried (autograd's workers,
///           tap::ContextGuard). Calls may be concurrent.
class OpTap {
 public:
  virtual ~OpTap() = default;
  virtual void call(const OpCall& op, Stack& stack) = 0;
};

/// Installs a tap on this thread while the guard lives. Taps can nest: the innermost client is called first, and its
/// next() calls the next outer one. After the guard's end, no thread calls the client for new operators.
/// Threads: create and destroy the guard on the same thread, in nested order. Otherwise it still ends, and an error is
///          logged.
/// Cost:    one additional boxed dispatch per operator; figures: bench/taps
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
