#include "bellows/recompute/selection.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "bellows/core/mutex.h"
#include "bellows/recompute/choose.h"
#include "bellows/recompute/saves.h"

namespace bellows::recompute {

CheckpointPolicy save_products(const CheckpointOp& op) {
  static constexpr std::array<std::string_view, 12> products{"aten::mm",
                                                             "aten::addmm",
                                                             "aten::bmm",
                                                             "aten::baddbmm",
                                                             "aten::convolution",
                                                             "aten::_convolution",
                                                             "aten::mkldnn_convolution",
                                                             "aten::linear",
                                                             "aten::mkldnn_linear",
                                                             "aten::convolution_overrideable",
                                                             "aten::mv",
                                                             "aten::addmv"};
  const bool product = std::count(products.begin(), products.end(), op.name) > 0 ||
                       op.name.find("_scaled_dot_product") != std::string_view::npos;
  return product ? CheckpointPolicy::prefer_save : CheckpointPolicy::prefer_recompute;
}

namespace detail {

int& PastRegions::depth() {
  static thread_local int depth = 0;
  return depth;
}

namespace {

char no_memory = 0;  ///< its address marks the storages of outlines

/// On an accelerator, measures the computation and not only its launch.
double seconds_now(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.defined() && !output.is_cpu())
      c10::impl::VirtualGuardImpl(output.device().type()).synchronizeDevice(output.device().index());
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns: the results of an operator that returns only tensors
std::vector<at::Tensor> tensors_of(std::span<const c10::IValue> results) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(results.size());
  for (const c10::IValue& result : results) tensors.push_back(result.toTensor());
  return tensors;
}

}  // namespace

bool has_no_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context() == &no_memory;
}

void KeptOutput::keep_outlines() {
  if (!outlines.defined() && tensor.defined()) {
    const auto size = static_cast<int64_t>(tensor.storage().nbytes());
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size,
                                                         at::DataPtr(
                                                             nullptr, &no_memory, [](void*) {}, tensor.device()),
                                                         nullptr, false);
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "checkpoint: the second run reads a tensor that was not recomputed because backward does not need it.");
    auto* const impl = tensor.unsafeGetTensorImpl();
    outlines = at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(0), true));
    outlines.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  }
  tensor.reset();
}

at::Tensor KeptOutput::given() const {
  // Shares the version counter, so that in-place writes in backward are detected. If writes are skipped, the tensor
  // gets a new counter, because they have increased the old one.
  if (tensor.defined() && writes == 0) return tensor.tensor_data();
  const at::Tensor& source = tensor.defined() ? tensor : outlines;
  if (!source.defined()) return {};
  return at::Tensor(source.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), false));
}

StoredOutput::StoredOutput(const at::Tensor& output) {
  if (!output.defined()) return;
  value = torch::autograd::SavedVariable(output, false);
  counter = output.unsafeGetTensorImpl()->version_counter();
  version = counter.enabled() ? counter.current_version() : 0;
}

bool KeptCall::modified() const {
  const auto was_modified = [](const auto& output) { return output.modified(); };
  return std::any_of(outputs.begin(), outputs.end(), was_modified) ||
         std::any_of(elsewhere.begin(), elsewhere.end(), was_modified);
}

Selection::Selection(const CheckpointOptions& options, std::shared_ptr<BudgetPlan> plan, bool counts,
                     const std::vector<at::Tensor>& held)
    : rule_(options.policy),
      fraction_(options.budget),
      with_random_(options.preserve_rng_state),
      checks_values_(options.check_values),
      plan_(std::move(plan)),
      counts_(counts) {
  if (plan_ && counts_) {
    number_ = plan_->begin(held);
    if (auto known = plan_->plan_of(number_); known && known->measured && !checks_values_)
      region_plan_ = std::move(known);
  }
  if (region_plan_) {
    calls_.reserve(region_plan_->steps.size());
  } else {
    trace_ = std::make_shared<RegionTrace>();
  }
}

Selection::~Selection() {
  if (plan_) plan_->released(planned_bytes_);
}

void Selection::second_run_begins() const {
  if (plan_) plan_->backward_begins();
}

void Selection::saved(const at::Tensor& tensor) {
  const MutexLock lock(mutex_);
  if (trace_) trace_->saved(tensor);
}

RandomStates Selection::random_states_after(OperatorKind kind, const at::Tensor& result) const {
  if (!with_random_ || !kind.random) return {};
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  if (result.defined() && !result.is_cpu()) devices.push_back(result.device());
  return random_states(devices);
}

/// Handles a call of a region with a plan: keeps the outputs that the plan selects.
void Selection::follow(const tap::OpCall& op, OperatorKind kind, tap::Stack& stack) {
  op.next(stack);
  const MutexLock lock(mutex_);
  KeptCall& call = calls_.emplace_back();
  call.schema = &op.handle().schema();
  const auto& steps = region_plan_->steps;
  const size_t number = calls_.size() - 1;
  other_calls_ = other_calls_ || number >= steps.size() || steps[number].schema != call.schema;
  if (other_calls_ || steps[number].action == Action::run) return;
  const std::vector<at::Tensor> results = tensors_of(op.results(stack));
  const auto never_kept = [](const at::Tensor& t) { return t.defined() && (!t.has_storage() || t.is_inference()); };
  if (std::any_of(results.begin(), results.end(), never_kept)) return;
  call.action = steps[number].action;
  call.random_after = random_states_after(kind, results[0]);
  if (kind.kind != CallKind::makes) return;
  call.outputs.reserve(results.size());
  for (const size_t i : c10::irange(results.size())) {
    if (!results[i].defined()) {
      call.outputs.emplace_back();
      continue;
    }
    call.outputs.push_back({results[i].tensor_data(), static_cast<uint32_t>(results[i]._version()), {}});
    if (i == 0) call.outputs.back().keep_final(steps[number].writes);
    if (!(steps[number].given >> i & 1)) call.outputs.back().keep_outlines();
  }
}

CheckpointPolicy Selection::policy_of(const tap::OpCall& op, const std::vector<at::Tensor>& outputs) const {
  if (!rule_) return CheckpointPolicy::prefer_recompute;
  int64_t bytes = 0;
  for (const at::Tensor& output : outputs) {
    if (output.defined()) bytes += static_cast<int64_t>(output.storage().nbytes());
  }
  return rule_({op.name(), op.overload(), outputs, bytes});
}

/// Handles a call of a region without a plan: keeps all candidates until the region ends.
void Selection::record(const tap::OpCall& op, OperatorKind kind, tap::Stack& stack) {
  using enum CheckpointPolicy;
  TracedCall traced{.schema = &op.handle().schema(), .kind = kind};
  {
    const MutexLock lock(mutex_);
    traced.reads = trace_->read(op.arguments(stack));
    if (kind.kind == CallKind::writes && !op.arguments(stack)[0].toTensor().has_storage())  // a sparse tensor
      traced.kind.kind = CallKind::other;
  }
  const double begin = budgeted() ? seconds_now({}) : 0;
  op.next(stack);
  const bool makes = kind.kind == CallKind::makes;
  const std::vector<at::Tensor> outputs = makes ? tensors_of(op.results(stack)) : std::vector<at::Tensor>();
  if (budgeted()) traced.seconds = seconds_now(outputs) - begin;
  const MutexLock lock(mutex_);
  KeptCall& call = calls_.emplace_back();
  call.schema = traced.schema;
  TracedCall& noted_call = trace_->add(std::move(traced), outputs);
  if (kind.kind == CallKind::writes) call.random_after = random_states_after(kind, op.results(stack)[0].toTensor());
  if (noted_call.kind.kind != CallKind::makes) return;
  call.random_after = random_states_after(kind, outputs[0]);
  call.policy = policy_of(op, outputs);
  const bool for_budget = budgeted() && (call.policy == prefer_save || call.policy == prefer_recompute);
  noted_call.kept = !for_budget && !kind.constant && call.policy != prefer_recompute && call.policy != must_recompute;
  noted_call.barred = !for_budget;
  call.outputs.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    call.outputs.emplace_back();
    if (!output.defined()) continue;
    call.outputs.back() = {output.tensor_data(), static_cast<uint32_t>(output._version()), {}};
    if (!for_budget && !noted_call.kept) call.outputs.back().keep_outlines();
  }
}

std::shared_ptr<const RegionPlan> Selection::decided(int64_t activation_bytes) {
  if (plan_)
    return counts_ ? plan_->finish(number_, {trace_, activation_bytes})
                   : plan_->finish_uncounted({trace_, activation_bytes});
  std::vector<char> kept(trace_->storages());
  if (fraction_)
    kept = choose({trace_.get()}, static_cast<int64_t>(*fraction_ * static_cast<double>(activation_bytes))).front();
  return plan_region(*trace_, kept, activation_bytes);
}

void Selection::finish(int64_t activation_bytes) {
  const MutexLock lock(mutex_);
  std::shared_ptr<const RegionPlan> plan = region_plan_;
  if (trace_) {
    trace_->finish();
    if (checks_values_) trace_->never_skip();
    for (const size_t i : c10::irange(calls_.size())) {
      auto& outputs = calls_[i].outputs;
      if (!outputs.empty() && outputs[0].tensor.defined() && !trace_->keeps(i))
        outputs[0].keep_final(trace_->writes_to(i));
      if (calls_[i].modified() || trace_->written_unseen(i)) trace_->cannot_keep(i);
    }
    plan = decided(activation_bytes);
    apply(plan->steps);
    trace_.reset();
  } else {
    other_calls_ = other_calls_ || calls_.size() != plan->steps.size();
    plan_->finish(number_, {nullptr, activation_bytes, other_calls_});
  }
  skips_ = true;
  if (plan_) {
    const double grown =
        static_cast<double>(activation_bytes) / static_cast<double>(std::max<int64_t>(1, plan->activation_bytes));
    const auto bytes = static_cast<int64_t>(grown * static_cast<double>(plan->kept_bytes));
    if (plan_->reserve(bytes)) {
      planned_bytes_ = bytes;
    } else {
      keep_nothing();
    }
  }
  const bool changed = std::any_of(calls_.begin(), calls_.end(), [](const KeptCall& call) { return call.modified(); });
  if (other_calls_ || changed) give_whole_calls_only();
  hand_to_guards_around();
}

void Selection::apply(const std::vector<Step>& steps) {
  for (const size_t i : c10::irange(calls_.size())) {
    KeptCall& call = calls_[i];
    call.action = steps[i].action;
    if (call.action == Action::run) {
      call.outputs.clear();
      call.random_after.clear();
    }
    for (const size_t output : c10::irange(call.outputs.size())) {
      if (!(steps[i].given >> output & 1)) call.outputs[output].keep_outlines();
    }
  }
}

void Selection::keep_nothing() {
  for (KeptCall& call : calls_) {
    if (call.action != Action::run) call = {.schema = call.schema};
  }
  skips_ = false;
}

/// For a second run that skips nothing: repeats each call whose outputs are not all kept.
void Selection::give_whole_calls_only() {
  for (KeptCall& call : calls_) {
    const auto lacks = [](const KeptOutput& output) {
      return output.outlines.defined() || output.writes > 0 || output.modified();
    };
    const bool whole = call.action == Action::give && !std::any_of(call.outputs.begin(), call.outputs.end(), lacks);
    if (!whole && call.action != Action::run) call = {.schema = call.schema};
  }
  skips_ = false;
}

void Selection::never_skip() {
  const MutexLock lock(mutex_);
  give_whole_calls_only();
  if (plan_ && counts_) plan_->never_skip(number_);
}

void Selection::check_given() const {
  for (const KeptCall& call : finished_calls()) {
    for (const KeptOutput& output : call.outputs) {
      TORCH_CHECK(output.writes == 0 || !output.modified(),
                  "one of the variables needed for gradient computation has been modified by an inplace operation: a ",
                  "tensor ", output.tensor.sizes(), " of a checkpointed function, in its backward pass.");
    }
  }
}

/// A guard that stores kept outputs receives those that a policy keeps. A budget depends on measured times, so the ranks
/// may keep different outputs. Outputs of nested calls would count as saved tensors of the outer call.
void Selection::hand_to_guards_around() {
  const PastRegions only_guards;
  const SaveScope scope(SaveKind::kept_output);
  const bool all = StoresKeptOutputs::any() && !ActiveRun::any();
  const auto lacks = [](const KeptOutput& output) { return output.outlines.defined() || output.writes > 0; };
  for (KeptCall& call : calls_) {
    if (call.action != Action::give) continue;
    const bool by_policy = !budgeted() || call.policy == CheckpointPolicy::must_save;
    const bool whole =
        all && by_policy && !call.modified() && !std::any_of(call.outputs.begin(), call.outputs.end(), lacks);
    if (call.policy != CheckpointPolicy::offload && !whole) continue;
    call.elsewhere.reserve(call.outputs.size());
    for (const KeptOutput& output : call.outputs) call.elsewhere.emplace_back(output.tensor);
    call.outputs.clear();
  }
}

namespace {

void replace_arguments(const tap::OpCall& op, tap::Stack& stack, const std::vector<at::Tensor>& outputs) {
  stack.resize(stack.size() - op.arguments(stack).size());
  for (const at::Tensor& output : outputs) stack.emplace_back(output);
}

/// Casts of weights depend on the state of autocast's cache, which may differ between the two runs.
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
  bool needs_each_call() const override { return true; }
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
  bool needs_each_call() const override { return true; }
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const OperatorKind kind = operator_kind(op.handle());
    const KeptCall* call = noted(kind, op, stack) ? next_call(op) : nullptr;
    if (!call || call->action == Action::run || call->modified()) {
      if (kind.writes_some) check_target(op, stack);
      return op.next(stack);
    }
    std::vector<at::Tensor> outputs;
    if (kind.kind == CallKind::writes) {
      // Memory that exists is always up to date, so writes that the plan did not expect are executed.
      outputs.push_back(op.arguments(stack)[0].toTensor());
      if (!has_no_memory(outputs[0]) && !is_final(outputs[0])) return op.next(stack);
    }
    outputs.reserve(call->outputs.size());
    for (const auto& output : call->elsewhere) {
      const PastRegions not_the_functions_operators;
      const at::Tensor tensor = output.value.unpack();
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
    const MutexLock lock(mutex_);
    const size_t number = number_++;
    const std::vector<KeptCall>& calls = selection_.finished_calls();
    if (number >= calls.size()) return nullptr;
    const KeptCall& call = calls[number];
    TORCH_CHECK_VALUE(call.schema == &op.handle().schema(), "checkpoint: the function called ", op.qualified_name(),
                      " in its second run, but it had called ", call.schema->name(), " as operator ", number,
                      " in the first run. With a policy or a budget, the same operators must run in the same order. A "
                      "possible cause is a branch that depends on changing state.");
    return &call;
  }

  void note_final(const at::Tensor& tensor) {
    const MutexLock lock(mutex_);
    finals_.push_back(tensor.storage().unsafeGetStorageImpl());
  }

  bool is_final(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return false;
    const MutexLock lock(mutex_);
    return std::count(finals_.begin(), finals_.end(), tensor.storage().unsafeGetStorageImpl()) > 0;
  }

  /// A tensor that was provided in its final state must not change, because it may be in use.
  void check_target(const tap::OpCall& op, tap::Stack& stack) const {
    const auto arguments = op.arguments(stack);
    for (const size_t i : c10::irange(arguments.size())) {
      const auto* alias = op.handle().schema().arguments()[i].alias_info();
      TORCH_CHECK(!(alias && alias->isWrite()) || !arguments[i].isTensor() || !is_final(arguments[i].toTensor()),
                  "checkpoint: the second run writes a tensor that was provided in its final state.");
    }
  }

  const Selection& selection_;
  mutable Mutex mutex_;
  size_t number_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::vector<const c10::StorageImpl*> finals_
      BELLOWS_GUARDED_BY(mutex_);  ///< storages that were provided in their final state
};

std::shared_ptr<tap::OpTap> Selection::first_run() {
  return std::make_shared<FirstRunTap>(*this);
}

std::shared_ptr<tap::OpTap> Selection::second_run() const {
  return std::make_shared<SecondRunTap>(*this);
}

}  // namespace detail
}  // namespace bellows::recompute
