#include "bellows/tap/op_ref.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace bellows::tap {
namespace {

std::span<c10::IValue> top_of(Stack& stack, size_t count) {
  return {stack.data() + (stack.size() - count), count};
}

}  // namespace

std::string_view OpRef::name() const {
  return handle_.operator_name().name;
}

std::string_view OpRef::overload() const {
  return handle_.operator_name().overload_name;
}

std::string OpRef::qualified_name() const {
  std::string result(name());
  if (!overload().empty()) result.append(".").append(overload());
  return result;
}

std::span<c10::IValue> OpRef::arguments(Stack& stack) const {
  return top_of(stack, handle_.schema().arguments().size());
}

std::span<c10::IValue> OpRef::results(Stack& stack) const {
  return top_of(stack, handle_.schema().returns().size());
}

void OpRef::set_result(Stack& stack, c10::IValue result) const {
  stack.resize(stack.size() - handle_.schema().arguments().size());
  stack.push_back(std::move(result));
}

}  // namespace bellows::tap
