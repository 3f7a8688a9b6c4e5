#include "bellows/recompute/selection_impl.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <shared_mutex>
#include <unordered_map>

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

/// What a schema says about keeping an operator's outputs.
struct Kind {
  bool keepable = false;  ///< its outputs are new tensors, and it says that it writes nothing
  bool random = false;
};

Kind kind_of_schema(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  Kind kind{.keepable = !schema.returns().empty(), .random = handle.hasTag(at::Tag::nondeterministic_seeded)};
  for (const auto& result : schema.returns())
    kind.keepable = kind.keepable && !result.alias_info() && result.type()->kind() == c10::TypeKind::TensorType;
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    kind.keepable = kind.keepable && !(alias && alias->isWrite());
  }
  return kind;
}

Kind known_kind(const c10::OperatorHandle& handle) {
  static auto* const known = new std::unordered_map<const c10::FunctionSchema*, Kind>;
  static std::shared_mutex mutex;
  {
    const std::shared_lock lock(mutex);
    if (const auto found = known->find(&handle.schema()); found != known->end()) return found->second;
  }
  const Kind kind = kind_of_schema(handle);
  const std::unique_lock lock(mutex);
  known->emplace(&handle.schema(), kind);
  return kind;
}

using Storages = c10::SmallVector<const c10::StorageImpl*, 8>;

Storages storages_of(std::span<const c10::IValue> values) {
  Storages result;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) result.push_back(tensor.storage().unsafeGetStorageImpl());
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    }
  }
  return result;
}

/// Times on an accelerator are those of its work, not of handing it over.
double seconds_now(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.defined() && !output.is_cpu())
      c10::impl::VirtualGuardImpl(output.device().type()).synchronizeDevice(output.device().index());
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<c10::Device> generator_devices(const std::vector<at::Tensor>& outputs) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  if (!outputs.empty() && outputs[0].defined() && !outputs[0].is_cpu()) devices.push_back(outputs[0].device());
  return devices;
}

void replace_arguments(const tap::OpCall& op, tap::Stack& stack, const std::vector<at::Tensor>& outputs) {
  stack.resize(stack.size() - op.arguments(stack).size());
  for (const at::Tensor& output : outputs) stack.emplace_back(output);
}

}  // namespace

class Selection::FirstRunTap final : public tap::OpTap {
 public:
  explicit FirstRunTap(Selection& selection) : selection_(selection) {}
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    if (!PastRegions::active() && known_kind(op.handle()).keepable) {
      selection_.note(op, stack);
    } else {
      op.next(stack);
    }
  }

 private:
  Selection& selection_;
};

class Selection::SecondRunTap final : public tap::OpTap {
 public:
  explicit SecondRunTap(const Selection& selection) : selection_(selection) {}
  void call(const tap::OpCall& op, tap::Stack& stack) override {
    const KeptCall* kept = !PastRegions::active() && known_kind(op.handle()).keepable ? next_call(op) : nullptr;
    if (!kept || !kept->kept || kept->modified()) return op.next(stack);
    std::vector<at::Tensor> outputs;
    outputs.reserve(kept->versions.size());
    // Tensors of their own over the same memory, as autograd writes its marks on them; with the same version counter, so
    // that what is written over them in backward is noticed.
    for (const at::Tensor& output : kept->outputs)
      outputs.push_back(output.defined() ? output.tensor_data() : at::Tensor());
    for (const auto& output : kept->elsewhere) {
      const at::Tensor tensor = output.unpack();
      outputs.push_back(tensor.defined() ? tensor.tensor_data() : tensor);
    }
    replace_arguments(op, stack, outputs);
    set_random_states(kept->random_after);
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

  const Selection& selection_;
  std::mutex mutex_;
  size_t number_ = 0;
};

bool KeptCall::modified() const {
  for (const size_t i : c10::irange(outputs.size())) {
    if (outputs[i].defined() && static_cast<uint32_t>(outputs[i]._version()) != versions[i]) return true;
  }
  return false;
}

Selection::Selection(const CheckpointOptions& options, std::shared_ptr<BudgetPlan> plan)
    : rule_(options.policy),
      fraction_(options.budget),
      with_random_(options.preserve_rng_state),
      plan_(std::move(plan)) {}

Selection::~Selection() {
  if (plan_) plan_->released(planned_bytes_);
}

std::shared_ptr<tap::OpTap> Selection::first_run() {
  return std::make_shared<FirstRunTap>(*this);
}

std::shared_ptr<tap::OpTap> Selection::second_run() const {
  return std::make_shared<SecondRunTap>(*this);
}

void Selection::second_run_begins() const {
  if (plan_) plan_->backward_begins();
}

void Selection::note(const tap::OpCall& op, tap::Stack& stack) {
  KeptCall call{.schema = &op.handle().schema()};
  const Storages given = storages_of(op.arguments(stack));
  const double begin = budgeted() ? seconds_now({}) : 0;
  op.next(stack);
  std::vector<at::Tensor> outputs;
  Storages counted;
  bool is_new = true;
  for (const c10::IValue& result : op.results(stack)) {
    outputs.push_back(result.toTensor());
    if (!outputs.back().defined() || !outputs.back().has_storage()) continue;
    const auto* storage = outputs.back().storage().unsafeGetStorageImpl();
    is_new = is_new && !std::count(given.begin(), given.end(), storage);
    if (std::count(counted.begin(), counted.end(), storage)) continue;
    counted.push_back(storage);
    call.cost.bytes += static_cast<int64_t>(storage->nbytes());
  }
  if (budgeted()) call.cost.seconds = seconds_now(outputs) - begin;
  if (is_new) decide(call, op, outputs);
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
}

void Selection::decide(KeptCall& call, const tap::OpCall& op, const std::vector<at::Tensor>& outputs) {
  using enum CheckpointPolicy;
  // Of inference mode: nobody would know if they were modified.
  if (std::any_of(outputs.begin(), outputs.end(), [](const at::Tensor& o) { return o.defined() && o.is_inference(); }))
    return;
  call.policy = rule_ ? rule_({op.name(), op.overload(), outputs, call.cost.bytes}) : prefer_recompute;
  call.counted = budgeted() && (call.policy == prefer_save || call.policy == prefer_recompute);
  call.kept = call.counted || call.policy == must_save || call.policy == prefer_save || call.policy == offload;
  if (!call.kept) return;
  call.versions.reserve(outputs.size());
  call.outputs.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    call.versions.push_back(output.defined() ? static_cast<uint32_t>(output._version()) : 0);
    call.outputs.push_back(output.defined() ? output.tensor_data() : output);
  }
  if (with_random_ && known_kind(op.handle()).random) call.random_after = random_states(generator_devices(outputs));
}

void Selection::finish(int64_t activation_bytes, bool counts) {
  std::vector<Candidate> candidates;
  std::vector<KeptCall*> of_candidate;
  for (KeptCall& call : calls_) {
    if (call.modified()) call.kept = false;
    if (call.kept && call.counted) {
      candidates.push_back(call.cost);
      of_candidate.push_back(&call);
    }
  }
  if (budgeted()) {
    const auto room = static_cast<int64_t>(fraction_.value_or(0) * static_cast<double>(activation_bytes));
    const auto keep =
        fraction_ ? choose(candidates, room) : plan_->choose_for_region(candidates, activation_bytes, counts);
    for (const size_t i : c10::irange(keep.size())) {
      of_candidate[i]->kept = keep[i];
      if (plan_ && keep[i]) planned_bytes_ += candidates[i].bytes;
    }
  }
  const PastRegions only_guards;
  for (KeptCall& call : calls_) {
    if (call.kept && call.policy == CheckpointPolicy::offload) {
      for (const at::Tensor& output : call.outputs) call.elsewhere.emplace_back(output, false);
    }
    if (!call.kept || !call.elsewhere.empty()) call.outputs.clear();
    if (!call.kept) call.random_after.clear();
  }
}

}  // namespace detail
}  // namespace bellows::recompute
