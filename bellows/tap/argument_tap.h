#pragma once

#include "bellows/tap/op_ref.h"

#include <memory>
#include <span>

namespace bellows::tap {

/// Receives the operators of layers at the top of the dispatcher, above autocast and autograd. It may replace their
/// arguments or compute them itself. Operators that a client calls for this purpose are differentiated like those of
/// the model.
///
/// These operators are received: linear, addmm, mm, matmul, conv1d, conv2d, conv3d, convolution, batch_norm,
/// layer_norm, embedding, dropout, scaled_dot_product_attention and cross_entropy_loss. Composite operators are received
/// first, and then the operators of which they consist. All other operators run as without the tap.
/// - Operators that the client itself calls are not received by any client of this kind.
/// - Exceptions propagate to the caller of the operator. The taps remain valid.
/// - An OpCheck receives the operator before its arguments are replaced.
/// Threads: called on each thread where the tap is installed or to which its context was carried (autograd's workers,
///          tap::ContextGuard). Calls may be concurrent
class ArgumentTap {
 public:
  virtual ~ArgumentTap() = default;
  /// Params: arguments – in the order of the schema; replaced arguments must match the schema
  virtual void call(const OpRef& op, std::span<c10::IValue> arguments) = 0;
  /// Computes the operator itself, or returns false. In the first case, the results replace op.arguments(stack) and must
  /// match the schema. Libtorch's kernel then does not run, and no later client is asked. All clients receive call()
  /// first.
  virtual bool compute(const OpRef& /*op*/, Stack& /*stack*/) { return false; }
};

/// Installs a tap on this thread while the guard exists. Nested taps are called in the order of installation, and each tap
/// receives the arguments that the previous one has left.
/// Threads: create and destroy guards on the same thread and in nested order. If you do not, the guard still ends, but
///          logs an error
/// Cost:    one boxed dispatch for each of these operators; other operators cost nothing; measured by bench/taps
class ArgumentTapGuard {
 public:
  /// Throws: c10::ValueError if `tap` is null
  explicit ArgumentTapGuard(std::shared_ptr<ArgumentTap> tap);
  ~ArgumentTapGuard();
  ArgumentTapGuard(const ArgumentTapGuard&) = delete;
  ArgumentTapGuard& operator=(const ArgumentTapGuard&) = delete;

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
