#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>

namespace bellows::tap {

/// One call that an OpTap client answers.
class OpCall : public OpRef {
 public:
  using OpRef::OpRef;
  /// Runs the call: the next outer client, and after the last one libtorch's kernel. Replaces the arguments on top of
  /// `stack` by the results. May be left out, or called more than once with other arguments.
  void next(Stack& stack) const;
};

/// Receives every operator below autograd and may change how it is executed.
///
/// - What arrives: operators after autograd and autocast have done their part, in backward too. Composite operators
///   arrive decomposed, except under inference mode, where matmul, dropout and attention arrive whole. detach() arrives
///   as aten::detach; libtorch's internal shallow copies do not. In-place operators and views arrive as such.
/// - A client either calls op.next(stack), or replaces op.arguments(stack) by results that fit the schema.
/// - Operators that a client itself issues run below autograd and go to the outer clients only, never to itself.
/// - Exceptions leave through the operator's call; the taps are in order afterwards.
/// Numerics: while a tap is active libtorch treats tensors as subclass-like, and some operators take other kernels:
///           docs/tap-bits.md lists those whose bits differ. To watch only, use Observer.
/// Threads: called on each thread where it is installed, or carried to: autograd's workers, tap::ContextGuard. Calls
///          may be concurrent.
class OpTap {
 public:
  virtual ~OpTap() = default;
  virtual void call(const OpCall& op, Stack& stack) = 0;
};

/// Installs a tap on this thread while it lives. Several nest: the innermost guard's client is called first, its next()
/// leads outwards. After the guard's end the client gets no new operator, on any thread.
/// Threads: make and destroy it on one thread, in nested order; otherwise it still ends, and the log says so.
/// Cost:    one more dispatch, boxed, for each operator; figures: bench/taps
class OpTapGuard {
 public:
  /// Throws: c10::ValueError – null
  explicit OpTapGuard(std::shared_ptr<OpTap> tap);
  ~OpTapGuard();
  OpTapGuard(const OpTapGuard&) = delete;
  OpTapGuard& operator=(const OpTapGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
