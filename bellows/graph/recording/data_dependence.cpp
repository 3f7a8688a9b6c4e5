#include "bellows/graph/recording/data_dependence.h"

#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>

namespace bellows::graph::detail {
namespace {

thread_local bool* seen_here = nullptr;

std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  if (op && (op->hasTag(at::Tag::data_dependent_output) || op->hasTag(at::Tag::dynamic_output_shape)))
    *seen_here = true;
  return nullptr;
}

}  // namespace

DataLook::DataLook(const c10::OperatorHandle& op) : outer_(seen_here) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
  seen_here = &seen_;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(look).scopes({at::RecordScope::FUNCTION}));
}

DataLook::~DataLook() {
  if (callback_ == 0) return;
  at::removeCallback(callback_);
  seen_here = outer_;
}

}  // namespace bellows::graph::detail
