#include "bellows/tap/argument_tap.h"

#include "bellows/tap/carried_stack.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace bellows::tap {
namespace {

using TapNode = CarriedNode<ArgumentTap, 0xB4>;

/// A key that libtorch itself does not use, directly below the key of OpCheck.
constexpr auto tap_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

constexpr const char* received[] = {"linear",
                                    "addmm",
                                    "mm",
                                    "matmul",
                                    "conv1d",
                                    "conv1d.padding",
                                    "conv2d",
                                    "conv2d.padding",
                                    "conv3d",
                                    "conv3d.padding",
                                    "convolution",
                                    "_convolution",
                                    "batch_norm",
                                    "layer_norm",
                                    "embedding",
                                    "dropout",
                                    "scaled_dot_product_attention",
                                    "cross_entropy_loss"};

void replace_then_run(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  if (TapNode* const top = TapNode::top()) {
    const c10::impl::ExcludeDispatchKeyGuard not_own_operators(tap_key);
    const OpRef op(handle);
    for (TapNode* node : top->all) {
      if (node->active) node->client->call(op, op.arguments(*stack));
    }
    for (TapNode* node : top->all) {
      if (node->active && node->client->compute(op, *stack)) return;
    }
  }
  handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, tap_key), stack);
}

void register_once() {
  [[gnu::used]] static const auto* const libraries = [] {
    auto* made = new std::vector<torch::Library>;  // never undone: operators may run until the process ends
    made->reserve(2);
    made->emplace_back(torch::Library::IMPL, "_", tap_key, __FILE__, __LINE__);
    made->back().fallback(torch::CppFunction::makeFallthrough());
    made->emplace_back(torch::Library::IMPL, "aten", tap_key, __FILE__, __LINE__);
    for (const char* name : received)
      made->back().impl(name, torch::CppFunction::makeFromBoxedFunction<&replace_then_run>());
    return made;
  }();
}

}  // namespace

ArgumentTapGuard::ArgumentTapGuard(std::shared_ptr<ArgumentTap> tap) {
  TORCH_CHECK_VALUE(tap, "ArgumentTapGuard: expected a tap, found null. Pass a std::make_shared<…>().");
  register_once();
  auto node = std::make_shared<TapNode>(std::move(tap));
  node_ = node;
  TapNode::push(node);
  c10::impl::tls_set_dispatch_key_included(tap_key, true);
}

ArgumentTapGuard::~ArgumentTapGuard() {
  TapNode::end(std::static_pointer_cast<TapNode>(node_), "ArgumentTapGuard");
  if (!TapNode::top()) c10::impl::tls_set_dispatch_key_included(tap_key, false);
}

}  // namespace bellows::tap
