#include <torch/torch.h>

#include <limits>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/optim/fused/fused_impl.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/fields_impl.h"
#include "bellows/optim/state/lend_impl.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

// A step that fails.

/// Unless it is dropped, or the kernels have begun: takes back the counts of the step that failed and the state it made.
class LibtorchOptimizer::Undo {
 public:
  explicit Undo(LibtorchOptimizer& optimizer) : optimizer_(optimizer), rounding_count_(optimizer.rounding_count_) {
    size_t parameters = 0;
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups_) parameters += group.params().size();
    counts_.reserve(parameters);
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups_) {
      for (const at::Tensor& p : group.params()) add(p.unsafeGetTensorImpl());
    }
  }
  ~Undo() {
    if (dropped_ || optimizer_.incomplete_) return;
    optimizer_.rounding_count_ = rounding_count_;
    for (const auto& [key, count] : counts_) {
      const auto found = optimizer_.state_.find(key);
      if (found == optimizer_.state_.end()) continue;
      if (!count)
        optimizer_.state_.erase(found);
      else if (int64_t* const steps = optimizer_.step_count(*found->second))
        *steps = *count;
    }
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void drop() { dropped_ = true; }

 private:
  void add(void* key) {
    const auto found = optimizer_.state_.find(key);
    std::optional<int64_t> count;  // none: there is no state yet
    if (found != optimizer_.state_.end()) {
      const int64_t* const steps = optimizer_.step_count(*found->second);
      count = steps ? *steps : 0;
    }
    counts_.emplace_back(key, count);
  }

  LibtorchOptimizer& optimizer_;
  std::vector<std::pair<void*, std::optional<int64_t>>> counts_;
  int64_t rounding_count_;
  bool dropped_ = false;
};

/// While it lives, the groups hold what a step that knows neither `maximize` nor master weights has to work on: master
/// copies in place of parameters, negated gradients. The state goes with them.
class LibtorchOptimizer::Working {
 public:
  explicit Working(LibtorchOptimizer& optimizer) : optimizer_(optimizer) {
    size_t parameters = 0;
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) parameters += group.params().size();
    substituted_.reserve(parameters);
    try {
      for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
        for (at::Tensor& p : group.params()) {
          if (p.grad().defined()) substitute(p);
        }
      }
    } catch (...) {
      restore();
      throw;
    }
  }
  ~Working() { restore(); }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
  void write_back() const {
    for (const auto& [slot, original] : substituted_) {
      if (slot->scalar_type() != original.scalar_type()) original.copy_(*slot);
    }
  }

 private:
  void substitute(at::Tensor& p) {
    const at::Tensor master = optimizer_.master_of(p);
    const bool maximize = optimizer_.common_.maximize;
    if (!master.defined() && !maximize) return;
    at::Tensor work = master.defined() ? master : p.detach();
    const at::Tensor grad = p.grad().to(work.scalar_type());
    work.mutable_grad() = maximize ? grad.neg() : grad;
    move_state(p, work);
    substituted_.emplace_back(&p, p);
    p = work;
  }
  void move_state(const at::Tensor& from, const at::Tensor& to) {
    auto& state = optimizer_.state();
    if (state.find(from.unsafeGetTensorImpl()) == state.end()) return;
    auto& slot = state[to.unsafeGetTensorImpl()];  // may throw, and may move the other entries
    const auto found = state.find(from.unsafeGetTensorImpl());
    slot = std::move(found->second);
    state.erase(found);
  }
  void restore() noexcept {
    for (auto& [slot, original] : substituted_) {
      try {
        move_state(*slot, original);
      } catch (...) {
        optimizer_.incomplete_ = true;
      }
      slot->mutable_grad().reset();
      *slot = original;
    }
  }

  LibtorchOptimizer& optimizer_;
  std::vector<std::pair<at::Tensor*, at::Tensor>> substituted_;
};

namespace {

using torch::optim::OptimizerParamGroup;

bool has_sparse_gradient(const at::Tensor& p) {
  return p.grad().defined() && p.grad().layout() != at::kStrided;
}

}  // namespace

void check_option(const char* optimizer, const char* option, double value, double low, double high) {
  TORCH_CHECK_VALUE(value >= low && value < high, optimizer, ": expected ", option, " in [", low, ", ", high, "), got ",
                    value, ".");
}

LibtorchOptimizer::LibtorchOptimizer(std::unique_ptr<torch::optim::Optimizer> reference, const ParamGroups& groups,
                                     Impl impl, Common common)
    : Optimizer(groups, reference->defaults().clone()),
      reference_(std::move(reference)),
      common_(std::move(common)),
      impl_(impl) {
  check_groups();
  check_low_bit();
  set_lr_tensor(common_.lr_tensor);
}

void LibtorchOptimizer::check_groups() const {
  size_t parameters = 0;
  for (const OptimizerParamGroup& group : param_groups_) {
    TORCH_CHECK_VALUE(typeid(group.options()) == typeid(*defaults_), common_.name,
                      ": a parameter group has options of another optimizer's class. Give it options of libtorch's "
                      "optimizer of the same name, or none.");
    for (const at::Tensor& p : group.params()) {
      TORCH_CHECK_VALUE(p.defined() && (p.is_floating_point() || p.is_complex()), common_.name, ": parameter ",
                        parameters, " cannot be optimized: expected floating-point numbers, got ",
                        p.defined() ? toString(p.scalar_type()) : "an undefined tensor", ".");
      ++parameters;
    }
  }
  TORCH_CHECK_VALUE(parameters > 0, common_.name, ": expected parameters to optimize, got none. Is the model empty?");
}

LibtorchOptimizer::ParamGroups LibtorchOptimizer::one_group(std::vector<at::Tensor> parameters) {
  ParamGroups groups;
  groups.emplace_back(std::move(parameters));
  return groups;
}

LibtorchOptimizer::ParamGroups LibtorchOptimizer::with_options(const std::vector<PatternGroup>& groups,
                                                               const torch::optim::OptimizerOptions& defaults) {
  ParamGroups result;
  for (const PatternGroup& group : groups) {
    auto options = defaults.clone();
    override_options(*options, group.options);
    result.emplace_back(group.params, std::move(options));
  }
  return result;
}

// --- choosing an implementation

bool LibtorchOptimizer::any_gradient(bool (*predicate)(const at::Tensor& parameter)) const {
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& p : group.params()) {
      if (p.grad().defined() && predicate(p)) return true;
    }
  }
  return false;
}

bool LibtorchOptimizer::can_fuse(const at::Tensor& p) const {
  if (!is_fusable(p.scalar_type())) return false;
  if (p.is_cpu()) return true;
  const bool plain = !fused_only() && (!common_.master_weights || !is_low_precision(p));
  return p.is_cuda() && ((common_.own_cuda && kernels::cuda::is_available()) || (common_.aten_cuda && plain));
}

void LibtorchOptimizer::check_low_bit() const {
  if (!fused_only()) return;
  const char* const what = has_low_bit_state() ? "state_dtype" : "stochastic_rounding";
  TORCH_CHECK_VALUE(impl_ == Impl::automatic || impl_ == Impl::fused, common_.name, ": ", what,
                    " is carried out by the fused step only, impl asks for another. Leave out one of the two.");
  TORCH_CHECK_VALUE(!rounds_at_random() || !common_.master_weights, common_.name,
                    ": stochastic_rounding is for bf16 weights without masters. Leave out master_weights.");
  TORCH_CHECK_VALUE(common_.min_8bit_size >= 0, common_.name, ": expected min_8bit_size of at least 0, got ",
                    common_.min_8bit_size, ".");
  size_t index = 0;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& p : group.params()) {
      TORCH_CHECK_VALUE(can_fuse(p) && (!has_low_bit_state() || p.scalar_type() != at::kDouble), common_.name, ": ",
                        what, " has no kernel for parameter ", index, ", of ", p.scalar_type(), " on ", p.device(),
                        ": expected fp32, bf16 or fp16 on the CPU",
                        common_.own_cuda ? ", or on CUDA in a build with -DBELLOWS_CUDA=ON." : ".");
      TORCH_CHECK_VALUE(common_.state != State::int4 || state_block(p) == 0 || p.is_contiguous(), common_.name,
                        ": state_dtype int4 is for row-major parameters, parameter ", index, " has shape ", p.sizes(),
                        " and strides ", p.strides(), ". Use int8, or contiguous weights.");
      ++index;
    }
  }
}

void LibtorchOptimizer::set_impl(Impl impl) {
  std::swap(impl_, impl);
  try {
    check_low_bit();
  } catch (...) {
    impl_ = impl;
    throw;
  }
}

Impl LibtorchOptimizer::next_impl() const {
  if (any_gradient(has_sparse_gradient)) return Impl::loop;
  if (impl_ != Impl::automatic) return impl_;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& p : group.params()) {
      if (!can_fuse(p)) return p.is_cpu() ? Impl::loop : Impl::foreach;
    }
  }
  return Impl::fused;
}

bool LibtorchOptimizer::takes_grad_scale() const {
  return next_impl() == Impl::fused;
}

void LibtorchOptimizer::set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) {
  for (const at::Tensor& scalar : {grad_scale, found_inf}) {
    TORCH_CHECK_VALUE(!scalar.defined() || (scalar.numel() == 1 && scalar.is_floating_point()), common_.name,
                      "::set_grad_scale: expected one number each, got a tensor of shape ", scalar.sizes(), ".");
  }
  grad_scale_ = std::move(grad_scale);
  found_inf_ = std::move(found_inf);
}

void LibtorchOptimizer::set_lr_tensor(at::Tensor lr) {
  TORCH_CHECK_VALUE(!lr.defined() || (lr.numel() == 1 && lr.is_floating_point()), common_.name,
                    ": expected lr_tensor to be one floating-point number, got shape ",
                    lr.defined() ? lr.sizes() : at::IntArrayRef(), ".");
  common_.lr_tensor = std::move(lr);
}

void LibtorchOptimizer::read_lr_tensor(bool fused) {
  const at::Tensor& lr = common_.lr_tensor;
  if (!lr.defined()) return;
  const bool stays_on_device = fused && !lr.is_cpu() && !any_gradient([](const at::Tensor& p) { return p.is_cpu(); });
  if (stays_on_device) return;
  const double value = lr.item<double>();
  check_option(common_.name, "lr_tensor", value);
  for (OptimizerParamGroup& group : param_groups_) group.options().set_lr(value);
}

// --- a step

void LibtorchOptimizer::check_gradients() const {
  size_t index = 0;
  for (const OptimizerParamGroup& group : param_groups_) {
    check(group.options());
    for (const at::Tensor& p : group.params()) {
      const at::Tensor& grad = p.grad();
      if (grad.defined()) {
        TORCH_CHECK_VALUE(grad.sizes() == p.sizes() && grad.device() == p.device(), common_.name,
                          "::step: the gradient of parameter ", index, " has shape ", grad.sizes(), " on ",
                          grad.device(), ", the parameter has ", p.sizes(), " on ", p.device(), ".");
        TORCH_CHECK_VALUE(common_.sparse || !has_sparse_gradient(p), common_.name, "::step: parameter ", index,
                          " has a sparse gradient, which ", common_.name,
                          " has no rule for. Use SGD or Adagrad, or make the embedding's gradient dense.");
      }
      ++index;
    }
  }
}

at::Tensor LibtorchOptimizer::step(LossClosure closure) {
  const at::Tensor grad_scale = std::exchange(grad_scale_, {}), found_inf = std::exchange(found_inf_, {});
  TORCH_CHECK(
      !incomplete_, common_.name,
      "::step: an earlier step or load failed half way, so weights and state belong to two different steps. Load "
      "a checkpoint into the model and the optimizer, or construct both again.");
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const c10::NoGradGuard no_grad;
  check_gradients();
  const Impl impl = next_impl();
  TORCH_CHECK_VALUE(impl == Impl::fused || !fused_only(), common_.name,
                    "::step: low-bit state and stochastic rounding need dense gradients on the CPU.");
  read_lr_tensor(impl == Impl::fused);
  if (impl == Impl::fused) {
    step_all_fused(grad_scale, found_inf);
  } else {
    TORCH_CHECK_VALUE(!grad_scale.defined() && !found_inf.defined(), common_.name,
                      "::step: only the fused step unscales gradients, this one is not fused. Call unscale_() first.");
    step_unfused(impl);
  }
  return loss;
}

void LibtorchOptimizer::step_all_fused(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& p : group.params()) {
      TORCH_CHECK_VALUE(!p.grad().defined() || can_fuse(p), common_.name, "::step: no fused kernel for a ",
                        p.scalar_type(), " parameter on ", p.device(),
                        p.is_cuda() ? ": this build has no CUDA kernels" : "",
                        ". Use Impl::automatic, or one of the others.");
    }
  }
  FusedStep step{.maximize = common_.maximize, .grad_factor = common_.maximize ? -1.0 : 1.0};
  const bool on_cpu = any_gradient([](const at::Tensor& p) { return p.is_cpu(); });
  if (on_cpu && !scale_on_cpu(step, grad_scale, found_inf)) return;
  step.grad_scale = grad_scale;
  step.found_inf = found_inf;
  if (common_.lr_tensor.defined() && !common_.lr_tensor.is_cpu()) step.lr = common_.lr_tensor;
  Undo undo(*this);
  step.begun = &incomplete_;
  for (OptimizerParamGroup& group : param_groups_) step_fused(group, step);
  undo.drop();
  incomplete_ = false;
  if (step.late.found_inf.defined()) skipped_steps_.add_(found_inf.gt(0));
  stepped_together_ = stepping_together();
}

/// What a step on the CPU multiplies gradients by, and whether it is carried out. A deferred one learns both when it runs, if all parameters
/// take it together, as they did the one before: then one number tells how many steps none of them has taken.
bool LibtorchOptimizer::scale_on_cpu(FusedStep& step, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  const bool deferred = tap::active_deferral() != nullptr;
  if (deferred)
    step.late.grad_scale = grad_scale;
  else if (grad_scale.defined())
    step.grad_factor /= grad_scale.item<double>();
  const bool together = stepped_together_ > 0 && stepping_together() == stepped_together_;
  if (deferred && together && found_inf.defined() && found_inf.is_cpu() && skipped_steps_.defined()) {
    step.late.found_inf = found_inf;
    step.late.skipped = skipped_steps_;
    return true;
  }
  settle_skipped();
  if (!found_inf.defined()) return true;
  if (deferred) skipped_steps_ = at::zeros({}, at::kDouble);
  return !(found_inf.item<double>() > 0);
}

/// How many parameters take the next step, if that are all of them; else 0. Rounding at random counts steps by itself.
size_t LibtorchOptimizer::stepping_together() const {
  size_t parameters = 0;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& p : group.params()) {
      if (!p.grad().defined() || !p.is_cpu()) return 0;
      ++parameters;
    }
  }
  return rounds_at_random() ? 0 : parameters;
}

void LibtorchOptimizer::step_unfused(Impl impl) {
  settle_steps();
  const Working working(*this);
  if (impl == Impl::loop) before_loop();
  incomplete_ = true;  // the operators below change weights one after the other
  if (impl == Impl::foreach) {
    for (OptimizerParamGroup& group : param_groups_) step_foreach(group);
  } else {
    const Lend lend(*this, *reference_);
    reference_->step();
  }
  working.write_back();
  incomplete_ = false;
}

// --- lists

TensorList gradients_of(const TensorList& parameters) {
  TensorList result;
  result.reserve(parameters.size());
  for (const at::Tensor& p : parameters) result.push_back(p.grad());
  return result;
}

void for_each_list(const TensorList& parameters, const std::function<void(const TensorList&)>& step) {
  constexpr size_t list_bytes = 256 << 10;
  TensorList list;
  size_t bytes = 0;
  for (const at::Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    const bool full = p.is_cpu() && bytes + p.nbytes() > list_bytes;
    const bool other = !list.empty() && (p.device() != list[0].device() || p.scalar_type() != list[0].scalar_type());
    if (!list.empty() && (full || other)) {
      step(list);
      list.clear();
      bytes = 0;
    }
    list.push_back(p);
    bytes += p.nbytes();
  }
  if (!list.empty()) step(list);
}

}  // namespace bellows::optim
