#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace bellows::tap {

/// The arguments of an operator call, and later its results. They are on top of the stack. Below them, the stack may
/// contain other values, such as those of the TorchScript interpreter.
using Stack = std::vector<c10::IValue>;

/// The operator of one call. An OpRef is cheap to create, and is valid only during the call.
class OpRef {
 public:
  explicit OpRef(const c10::OperatorHandle& handle) : handle_(handle) {}

  /// Returns libtorch's handle of the operator, with schema, tags and redispatch (ATen/core/dispatch/Dispatcher.h).
  const c10::OperatorHandle& handle() const { return handle_; }
  /// Returns a name such as "aten::add".
  std::string_view name() const;
  /// Returns an overload name such as "Tensor", or "" for operators without overloads.
  std::string_view overload() const;
  /// Returns a name such as "aten::add.Tensor" or "aten::relu".
  /// Cost: allocates one string
  std::string qualified_name() const;

  /// Returns the arguments. Call this function before the operator runs.
  std::span<c10::IValue> arguments(Stack& stack) const;
  /// Returns the results. Call this function after the operator has run.
  std::span<c10::IValue> results(Stack& stack) const;
  /// Replaces the arguments by the result of an operator that returns one value. Call this function instead of the
  /// operator.
  void set_result(Stack& stack, c10::IValue result) const;

 private:
  const c10::OperatorHandle& handle_;
};

}  // namespace bellows::tap
