#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "bellows/recompute/selection_impl.h"

namespace bellows::recompute::detail {

namespace {

void replace_arguments(const tap::OpCall& op, tap::Stack& stack, const std::vector<at::Tensor>& outputs) {
  stack.resize(stack.size() - op.arguments(stack).size());
  for (const at::Tensor& output : outputs) stack.emplace_back(output);
}

/// Autocast's cache decides whether there is one: that of the first run need not be that of the second.
bool casts_weight(const tap::OpCall& op, tap::Stack& stack) {
  if (op.name() != "aten::_to_copy") return false;
  const at::Tensor& tensor = op.arguments(stack)[0].toTensor();
  return tensor.is_leaf() && tensor.requires_grad();
}

bool noted(OperatorKind kind, const tap::OpCall& op, tap::Stack& stack) {
  return !PastRegions::active() && kind.kind != CallKind::view && !casts_weight(op, stack);
}

}  // namespace

class Selection::FirstRunTap final : public tap::OpTap {
 public:
  explicit FirstRunTap(Selection& selection) : selection_(selection) {}
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const OperatorKind kind = operator_kind(op.handle());
    if (!noted(kind, op, stack)) {
      op.next(stack);
    } else if (selection_.region_plan_) {
      selection_.follow(op, kind, stack);
    } else {
      selection_.record(op, kind, stack);
    }
  }

 private:
  Selection& selection_;
};

class Selection::SecondRunTap final : public tap::OpTap {
 public:
  explicit SecondRunTap(const Selection& selection) : selection_(selection) {}
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const OperatorKind kind = operator_kind(op.handle());
    const KeptCall* call = noted(kind, op, stack) ? next_call(op) : nullptr;
    if (!call || call->action == Action::run || call->modified()) {
      if (kind.writes_some) check_target(op, stack);
      return op.next(stack);
    }
    std::vector<at::Tensor> outputs;
    if (kind.kind == CallKind::writes) {
      // Memory that is there is always right: what the plan did not foresee is done.
      outputs.push_back(op.arguments(stack)[0].toTensor());
      if (!has_no_memory(outputs[0]) && !is_final(outputs[0])) return op.next(stack);
    }
    outputs.reserve(call->outputs.size());
    for (const auto& output : call->elsewhere) {
      const PastRegions not_the_functions_operators;
      const at::Tensor tensor = output.unpack();
      outputs.push_back(tensor.defined() ? tensor.tensor_data() : tensor);
    }
    for (const KeptOutput& output : call->outputs) {
      outputs.push_back(output.given());
      if (output.tensor.defined() && output.writes > 0) note_final(output.tensor);
    }
    replace_arguments(op, stack, outputs);
    set_random_states(call->random_after);
  }

 private:
  const KeptCall* next_call(const tap::OpCall& op) {
    const std::lock_guard lock(mutex_);
    const size_t number = number_++;
    if (number >= selection_.calls_.size()) return nullptr;
    const KeptCall& call = selection_.calls_[number];
    TORCH_CHECK_VALUE(call.schema == &op.handle().schema(), "checkpoint: the function called ", op.qualified_name(),
                      " in its second run, where it had called ", call.schema->name(), " as operator ", number,
                      " before. With a policy or a budget the same operators must run in the same order: look for ",
                      "branches on something that changes.");
    return &call;
  }

  void note_final(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    finals_.push_back(tensor.storage().unsafeGetStorageImpl());
  }

  bool is_final(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return false;
    const std::lock_guard lock(mutex_);
    return std::count(finals_.begin(), finals_.end(), tensor.storage().unsafeGetStorageImpl()) > 0;
  }

  /// What was given as the first run left it must stay so: it may be in use.
  void check_target(const tap::OpCall& op, tap::Stack& stack) const {
    const auto arguments = op.arguments(stack);
    for (const size_t i : c10::irange(arguments.size())) {
      const auto* alias = op.handle().schema().arguments()[i].alias_info();
      TORCH_CHECK(!(alias && alias->isWrite()) || !arguments[i].isTensor() || !is_final(arguments[i].toTensor()),
                  "checkpoint: the second run writes a tensor that it was given in its last state.");
    }
  }

  const Selection& selection_;
  mutable std::mutex mutex_;
  size_t number_ = 0;
  std::vector<const c10::StorageImpl*> finals_;  ///< given as the region left them
};

std::shared_ptr<tap::OpTap> Selection::first_run() {
  return std::make_shared<FirstRunTap>(*this);
}

std::shared_ptr<tap::OpTap> Selection::second_run() const {
  return std::make_shared<SecondRunTap>(*this);
}

}  // namespace bellows::recompute::detail
