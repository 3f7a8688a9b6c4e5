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

/// Arguments of an operator call, then its results. It may hold more below: the TorchScript interpreter passes its own.
using Stack = std::vector<c10::IValue>;

/// The operator of one call. Cheap to make; valid during the call.
class OpRef {
 public:
  explicit OpRef(const c10::OperatorHandle& handle) : handle_(handle) {}

  /// libtorch's own handle: schema, tags, redispatch (ATen/core/dispatch/Dispatcher.h).
  const c10::OperatorHandle& handle() const { return handle_; }
  /// "aten::add"
  std::string_view name() const;
  /// "Tensor", or "" where the operator has no overloads
  std::string_view overload() const;
  /// "aten::add.Tensor", "aten::relu".
  /// Cost:     one string
  std::string qualified_name() const;

  /// The arguments: the top of the stack before the operator ran.
  std::span<c10::IValue> arguments(Stack& stack) const;
  /// The results: the top of the stack after it ran.
  std::span<c10::IValue> results(Stack& stack) const;

 private:
  const c10::OperatorHandle& handle_;
};

}  // namespace bellows::tap
