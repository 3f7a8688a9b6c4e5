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

/// The arguments of an operator call, later its results. They are on top; below them, the stack may hold other values,
/// such as those of the TorchScript interpreter.
using Stack = std::vector<c10::IValue>;

/// The operator of one call. Cheap to create; valid during the call.
class OpRef {
 public:
  explicit OpRef(const c10::OperatorHandle& handle) : handle_(handle) {}

  /// libtorch's own handle: schema, tags, redispatch (ATen/core/dispatch/Dispatcher.h).
  const c10::OperatorHandle& handle() const { return handle_; }
  /// Example: "aten::add"
  std::string_view name() const;
  /// Example: "Tensor", or "" for operators without overloads
  std::string_view overload() const;
  /// Example: "aten::add.Tensor", "aten::relu"
  /// Cost:    allocates one string
  std::string qualified_name() const;

  /// The arguments. Call it before the operator runs.
  std::span<c10::IValue> arguments(Stack& stack) const;
  /// The results. Call it after the operator ran.
  std::span<c10::IValue> results(Stack& stack) const;

 private:
  const c10::OperatorHandle& handle_;
};

}  // namespace bellows::tap
