#include "bellows/tap/op_check.h"

#include "bellows/tap/carried_stack.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace bellows::tap {
namespace {

using CheckNode = CarriedNode<OpCheck, 0xB1>;

/// A mode key of the dispatcher that libtorch itself does not use. It sits above autocast and autograd, is enabled per
/// thread, and is carried by at::ThreadLocalState. Exceptions from here leave the operator's call; RecordFunction would
/// swallow them.
constexpr auto check_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

void check_then_run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  if (CheckNode* top = CheckNode::top()) {
    c10::impl::ExcludeDispatchKeyGuard not_own_operators(check_key);
    const OpRef op(handle);
    for (CheckNode* node : top->all) {
      if (node->active) node->client->check(op, *stack);
    }
  }
  handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, check_key), stack);
}

void register_fallback_once() {
  [[gnu::used]] static torch::Library* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", check_key, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&check_then_run>());
    return made;  // never destroyed: operators may run until the process ends
  }();
}

}  // namespace

OpCheckGuard::OpCheckGuard(std::shared_ptr<OpCheck> check) {
  TORCH_CHECK_VALUE(check, "OpCheckGuard: expected a check, found null. Pass a std::make_shared<…>().");
  register_fallback_once();
  auto node = std::make_shared<CheckNode>(std::move(check));
  node_ = node;
  CheckNode::push(node);
  c10::impl::tls_set_dispatch_key_included(check_key, true);
}

OpCheckGuard::~OpCheckGuard() {
  CheckNode::end(std::static_pointer_cast<CheckNode>(node_), "OpCheckGuard");
  if (!CheckNode::top()) c10::impl::tls_set_dispatch_key_included(check_key, false);
}

UncheckedOperators::UncheckedOperators() : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(check_key)) {
  c10::impl::tls_set_dispatch_key_excluded(check_key, true);
}

UncheckedOperators::~UncheckedOperators() {
  c10::impl::tls_set_dispatch_key_excluded(check_key, excluded_before_);
}

}  // namespace bellows::tap
