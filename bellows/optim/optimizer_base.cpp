#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/kernels/dynamic_map.h"
#include "bellows/kernels/stochastic_round.h"
#include "bellows/optim/larc.h"
#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/fields_impl.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

namespace {

using torch::optim::OptimizerParamGroup;

/// Lends parameter groups and state to libtorch's own optimizer for one call.
class Lend {
 public:
  Lend(torch::optim::Optimizer& from, torch::optim::Optimizer& to) : from_(from), to_(to) { exchange(); }
  ~Lend() { exchange(); }
  Lend(const Lend&) = delete;
  Lend& operator=(const Lend&) = delete;

 private:
  void exchange() {
    std::swap(from_.param_groups(), to_.param_groups());
    from_.state().swap(to_.state());  // std::swap would create a third table, which allocates
  }
  torch::optim::Optimizer &from_, &to_;
};

bool is_low_precision(const at::Tensor& p) {
  return p.scalar_type() == at::kBFloat16 || p.scalar_type() == at::kHalf;
}

bool has_sparse_gradient(const at::Tensor& p) {
  return p.grad().defined() && p.grad().layout() != at::kStrided;
}

}  // namespace

// --- failing steps

/// Restores the step counts and removes the state created by a failed step, unless drop() was called or the kernels had
/// started.
class LibtorchOptimizer::Undo {
 public:
  explicit Undo(LibtorchOptimizer& optimizer) : optimizer_(optimizer), rounding_count_(optimizer.rounding_count_) {
    size_t parameters = 0;
    for (const OptimizerParamGroup& group : optimizer.param_groups_) parameters += group.params().size();
    counts_.reserve(parameters);
    for (const OptimizerParamGroup& group : optimizer.param_groups_) {
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
    std::optional<int64_t> count;  // empty: no state yet
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

/// While it lives, the groups contain tensors for steps that support neither `maximize` nor master weights: master
/// weights in place of parameters, and negated gradients. The state moves with them.
class LibtorchOptimizer::Working {
 public:
  explicit Working(LibtorchOptimizer& optimizer) : optimizer_(optimizer) {
    size_t parameters = 0;
    for (const OptimizerParamGroup& group : optimizer.param_groups()) parameters += group.params().size();
    substituted_.reserve(parameters);
    try {
      for (OptimizerParamGroup& group : optimizer.param_groups()) {
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
    auto& slot = state[to.unsafeGetTensorImpl()];  // may throw, and may invalidate other entries
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

// --- options

double* find_number(torch::optim::OptimizerOptions& options, std::string_view name) {
  double* found = nullptr;
  with_kind(options, [&](auto kind) {
    fields(static_cast<typename decltype(kind)::Options&>(options), [&](std::string_view field, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
        if (field == name) found = &value;
      }
    });
    return true;
  });
  return found;
}

bool LibtorchOptimizer::needs_all_gradients() const {
  return std::any_of(param_groups_.begin(), param_groups_.end(), [](const OptimizerParamGroup& group) {
    const auto options = group.options().clone();
    const double* const limit = find_number(*options, "max_grad_norm");
    return limit && *limit > 0;
  });
}

// --- construction

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
                      ": a parameter group has the options of another optimizer class. Pass options of the libtorch "
                      "optimizer with the same name, or no options.");
    for (const at::Tensor& p : group.params()) {
      TORCH_CHECK_VALUE(p.defined() && (p.is_floating_point() || p.is_complex()), common_.name, ": parameter ",
                        parameters, " cannot be optimized: expected a floating-point dtype, got ",
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
                    " is supported only by the fused step, but impl requests another implementation. Leave out one of "
                    "the two options.");
  TORCH_CHECK_VALUE(!rounds_at_random() || !common_.master_weights, common_.name,
                    ": stochastic_rounding works only with bf16 weights without master weights. Set either "
                    "stochastic_rounding or master_weights.");
  TORCH_CHECK_VALUE(common_.min_8bit_size >= 0, common_.name, ": expected min_8bit_size of at least 0, got ",
                    common_.min_8bit_size, ".");
  size_t index = 0;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& p : group.params()) {
      TORCH_CHECK_VALUE(can_fuse(p) && (!has_low_bit_state() || p.scalar_type() != at::kDouble), common_.name, ": ",
                        what, " has no kernel for parameter ", index, ", which is ", p.scalar_type(), " on ",
                        p.device(), ": expected fp32, bf16 or fp16 on the CPU",
                        common_.own_cuda ? ", or on CUDA in a build with -DBELLOWS_CUDA=ON." : ".");
      TORCH_CHECK_VALUE(common_.state != State::int4 || state_block(p) == 0 || p.is_contiguous(), common_.name,
                        ": state_dtype int4 requires row-major parameters, but parameter ", index, " has shape ",
                        p.sizes(), " and strides ", p.strides(), ". Use int8, or contiguous weights.");
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
  return !larc_ && next_impl() == Impl::fused;
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
                          grad.device(), ", but the parameter has ", p.sizes(), " on ", p.device(), ".");
        TORCH_CHECK_VALUE(
            common_.sparse || !has_sparse_gradient(p), common_.name, "::step: parameter ", index,
            " has a sparse gradient, which ", common_.name,
            " does not support. Use SGD or Adagrad, or set sparse(false) in the embedding to get a dense gradient.");
      }
      ++index;
    }
  }
}

at::Tensor LibtorchOptimizer::step(LossClosure closure) {
  const at::Tensor grad_scale = std::exchange(grad_scale_, {}), found_inf = std::exchange(found_inf_, {});
  TORCH_CHECK(
      !incomplete_, common_.name,
      "::step: an earlier step or load failed halfway, so weights and state belong to two different steps. Load "
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
  TORCH_CHECK_VALUE(!larc_ || (!grad_scale.defined() && !found_inf.defined()), common_.name,
                    "::step: LARC needs unscaled gradients. Call unscale_() first.");
  read_lr_tensor(impl == Impl::fused && !larc_);
  std::optional<Larc> larc;
  if (larc_) larc.emplace(*this);
  if (impl == Impl::fused) {
    step_all_fused(grad_scale, found_inf);
  } else {
    TORCH_CHECK_VALUE(
        !grad_scale.defined() && !found_inf.defined(), common_.name,
        "::step: only the fused step unscales gradients, but this step is not fused. Call unscale_() first.");
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
                        ". Use Impl::automatic, or another implementation.");
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

/// Sets the gradient factor of a step on the CPU. Returns false if the step is skipped. A deferred step determines both
/// when it runs. This requires that all parameters take part in this step and in the previous one: then one number
/// counts the skipped steps of all.
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

/// Number of parameters in the next step if all of them take part, otherwise 0. With stochastic rounding it is 0,
/// because rounding has its own step count.
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
  incomplete_ = true;  // the operators below change the weights one after another
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

// --- master weights

bool LibtorchOptimizer::keeps_master(const at::Tensor& parameter) const {
  return common_.master_weights && is_low_precision(parameter);
}

at::Tensor LibtorchOptimizer::master_of(const at::Tensor& parameter) {
  if (!keeps_master(parameter)) return {};
  at::Tensor& master = masters_[parameter.unsafeGetTensorImpl()];
  if (!master.defined()) master = parameter.detach().to(at::kFloat);
  return master;
}

at::Tensor LibtorchOptimizer::master_weight(const at::Tensor& parameter) const {
  const auto found = masters_.find(parameter.unsafeGetTensorImpl());
  return found == masters_.end() ? at::Tensor() : found->second;
}

void LibtorchOptimizer::set_master_weight(const at::Tensor& parameter, at::Tensor master) {
  TORCH_CHECK_VALUE(keeps_master(parameter), common_.name,
                    ": got a master weight for a parameter that does not have one. Construct the optimizer with "
                    ".master_weights = true and bf16 or fp16 parameters.");
  masters_[parameter.unsafeGetTensorImpl()] = std::move(master);
}

void LibtorchOptimizer::refresh_master_weights() {
  masters_.clear();
}

// --- form of the state

namespace {

void check_scale(const at::Tensor& p, int64_t block, const at::Tensor& scale, const std::string& name) {
  const int64_t blocks = (p.numel() + block - 1) / block;
  TORCH_CHECK_VALUE(scale.dim() == 1 && scale.size(0) == blocks, "load: the scales of \"", name, "\" have shape ",
                    scale.sizes(), ", expected [", blocks, "], one for each ", block,
                    " elements. The state was saved with another block size or state_dtype.");
}

}  // namespace

void check_low_bit_state(const LibtorchOptimizer& optimizer, const at::Tensor& p, const at::Tensor& value,
                         const at::Tensor& scale, const std::string& name) {
  const int64_t block = optimizer.state_block(p);
  TORCH_CHECK_VALUE((value.scalar_type() == at::kByte) == (block > 0), "load: \"", name, "\" is ", value.scalar_type(),
                    ", but this optimizer keeps ", block > 0 ? "low-bit state" : "floating-point state",
                    " for that parameter. Construct it with the state_dtype and min_8bit_size of the saved one.");
  if (block == 0) return;
  TORCH_CHECK_VALUE(value.sizes() == at::IntArrayRef(optimizer.state_sizes(p)), "load: \"", name, "\" has shape ",
                    value.sizes(), ", expected ", optimizer.state_sizes(p),
                    ". It belongs to another model, or was saved with another block size or state_dtype.");
  const bool in_order = value.dim() != p.dim() || same_layout(value, at::empty_like(p, p.options().device(at::kMeta)));
  TORCH_CHECK_VALUE(
      in_order, "load: \"", name, "\" has strides ", value.strides(), ", but its parameter has strides ", p.strides(),
      ". Low-bit blocks follow the memory layout. Convert the model to the memory layout of the saved run.");
  TORCH_CHECK_VALUE(scale.defined(), "load: the scales of \"", name,
                    "\" are missing. The state is incomplete, or belongs to another optimizer.");
  check_scale(p, block, scale, name);
}

at::ScalarType LibtorchOptimizer::state_dtype(const at::Tensor& p) const {
  if (state_block(p) > 0) return at::kByte;
  const bool single = has_low_bit_state() || common_.master_weights;
  return single && is_low_precision(p) ? at::kFloat : p.scalar_type();
}

int64_t LibtorchOptimizer::state_block(const at::Tensor& p) const {
  if (!has_low_bit_state()) return 0;
  const auto part = whole_numels_.find(p.unsafeGetTensorImpl());
  const int64_t numel = part == whole_numels_.end() ? p.numel() : part->second;
  if (numel < std::max<int64_t>(common_.min_8bit_size, 1)) return 0;
  return common_.state == State::int8 ? kernels::State8::block : kernels::State4::block;
}

int64_t LibtorchOptimizer::state_block_bytes() const {
  return common_.state == State::int4 ? kernels::State4::block_bytes : kernels::State8::block_bytes;
}

void LibtorchOptimizer::set_whole_numel(const at::Tensor& p, int64_t numel) {
  TORCH_CHECK_VALUE(numel >= p.numel(), common_.name, ": a part of ", p.numel(),
                    " elements cannot belong to a parameter of ", numel, " elements.");
  whole_numels_[p.unsafeGetTensorImpl()] = numel;
}

std::vector<int64_t> LibtorchOptimizer::state_sizes(const at::Tensor& p) const {
  const int64_t block = state_block(p);
  if (common_.state != State::int4 || block == 0) return p.sizes().vec();
  return {(p.numel() + block - 1) / block * state_block_bytes()};
}

LibtorchOptimizer::Scales LibtorchOptimizer::state_scales(const at::Tensor& p) const {
  const auto found = scales_.find(p.unsafeGetTensorImpl());
  return found == scales_.end() ? Scales() : found->second;
}

void LibtorchOptimizer::set_state_scales(const at::Tensor& p, Scales scales) {
  const int64_t block = state_block(p);
  TORCH_CHECK_VALUE(block > 0, common_.name, ": got scales of low-bit state for a parameter without low-bit state. ",
                    "Construct the optimizer with the state_dtype and min_8bit_size of the saved one.");
  for (at::Tensor& scale : scales) {
    if (!scale.defined()) continue;
    check_scale(p, block, scale, "state");
    scale = scale.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  }
  scales_[p.unsafeGetTensorImpl()] = std::move(scales);
}

const LibtorchOptimizer::Scales& LibtorchOptimizer::scales_of(const at::Tensor& p, int moments) {
  Scales& scales = scales_[p.unsafeGetTensorImpl()];
  const int64_t block = state_block(p), blocks = (p.numel() + block - 1) / block;
  for (size_t k = 0; k < static_cast<size_t>(moments); ++k) {
    if (!scales[k].defined()) scales[k] = at::zeros({blocks}, at::TensorOptions(p.device()).dtype(at::kFloat));
  }
  return scales;
}

void OptimizerInternals::add_low_bit(const at::Tensor& p, int moments, kernels::LowBit& bits,
                                     std::array<at::Tensor, 2>& scale) const {
  if (moments == 0 || optimizer.state_block(p) == 0) return;
  bits = optimizer.common_.state == State::int8 ? kernels::LowBit::int8 : kernels::LowBit::int4;
  scale = optimizer.scales_of(p, moments);
}

uint64_t OptimizerInternals::next_rounding_seed() const {
  return kernels::nth_rounding_seed(optimizer.common_.rounding_seed,
                                    static_cast<uint64_t>(optimizer.rounding_count_++));
}

at::Tensor OptimizerInternals::new_state(const at::Tensor& p, double value) const {
  const at::TensorOptions type(optimizer.state_dtype(p));
  if (optimizer.state_block(p) == 0) return at::full_like(p.detach(), value, type, at::MemoryFormat::Preserve);
  // With scales of zero, every code decodes to zero.
  if (optimizer.common_.state == State::int4) return at::zeros(optimizer.state_sizes(p), type.device(p.device()));
  return at::zeros_like(p.detach(), type, at::MemoryFormat::Preserve);
}

// --- step counts

at::Tensor LibtorchOptimizer::device_step(const at::Tensor& parameter, int64_t steps_before) {
  at::Tensor& step = device_steps_[parameter.unsafeGetTensorImpl()];
  if (!step.defined()) {
    step = at::full({}, static_cast<double>(steps_before), parameter.options().dtype(at::kFloat).requires_grad(false));
  }
  return step;
}

void LibtorchOptimizer::settle_steps() {
  for (const auto& [key, step] : device_steps_) {
    const auto found = state_.find(key);
    if (found != state_.end()) *step_count(*found->second) = step.item<int64_t>();
  }
  device_steps_.clear();
  settle_skipped();
}

void LibtorchOptimizer::settle_skipped() {
  if (!skipped_steps_.defined()) return;
  const auto skipped = skipped_steps_.item<int64_t>();
  skipped_steps_.reset();
  for (const auto& [key, state] : state_) {
    if (int64_t* const count = step_count(*state)) *count -= skipped;
  }
}

// --- archives

/// Restores the complete state, unless drop() was called.
class LibtorchOptimizer::Kept {
 public:
  explicit Kept(LibtorchOptimizer& optimizer) : optimizer_(optimizer), rounding_count_(optimizer.rounding_count_) {
    optimizer.settle_steps();
    for (const OptimizerParamGroup& group : optimizer.param_groups_) options_.push_back(group.options().clone());
    // Nothing below throws: the destructor of an object whose constructor threw would not run.
    masters_ = std::move(optimizer.masters_), scales_ = std::move(optimizer.scales_);
    state_ = std::move(optimizer.state_);
    optimizer.masters_.clear(), optimizer.scales_.clear(), optimizer.state_.clear();
  }
  ~Kept() {
    if (dropped_) return;
    optimizer_.masters_ = std::move(masters_), optimizer_.scales_ = std::move(scales_);
    optimizer_.state_ = std::move(state_);
    optimizer_.rounding_count_ = rounding_count_;
    for (size_t g = 0; g < options_.size(); ++g) optimizer_.param_groups_[g].set_options(std::move(options_[g]));
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  void drop() { dropped_ = true; }

 private:
  LibtorchOptimizer& optimizer_;
  decltype(LibtorchOptimizer::masters_) masters_;
  decltype(LibtorchOptimizer::scales_) scales_;
  std::decay_t<decltype(std::declval<LibtorchOptimizer&>().state())> state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  int64_t rounding_count_;
  bool dropped_ = false;
};

namespace {

/// Calls `f(number, parameter)` for each parameter. The number counts over all groups.
template <class F>
void for_each_parameter(const std::vector<OptimizerParamGroup>& groups, F f) {
  size_t index = 0;
  for (const OptimizerParamGroup& group : groups) {
    for (const at::Tensor& p : group.params()) f(std::to_string(index++), p);
  }
}

std::string scale_key(const std::string& number, size_t moment) {
  return "state_scale." + number + "." + std::to_string(moment);
}

}  // namespace

void LibtorchOptimizer::save(torch::serialize::OutputArchive& archive) const {
  // Lending and settling do not change the observable state of this object.
  auto& self = const_cast<LibtorchOptimizer&>(*this);
  self.settle_steps();
  const Lend lend(self, *reference_);
  reference_->save(archive);
  for_each_parameter(reference_->param_groups(), [&](const std::string& number, const at::Tensor& p) {
    if (const at::Tensor master = master_weight(p); master.defined()) archive.write("master_weight." + number, master);
    const Scales scales = state_scales(p);
    for (size_t k = 0; k < scales.size(); ++k) {
      if (scales[k].defined()) archive.write(scale_key(number, k), scales[k]);
    }
  });
  if (rounds_at_random()) archive.write("rounding_count", at::scalar_tensor(rounding_count_, at::kLong));
}

void LibtorchOptimizer::check_loaded_state() const {
  with_kind(*defaults_, [&](auto kind) {
    for_each_parameter(param_groups_, [&](const std::string& number, const at::Tensor& p) {
      const auto found = state_.find(p.unsafeGetTensorImpl());
      if (found == state_.end()) return;
      size_t moment = 0;
      fields(static_cast<typename decltype(kind)::State&>(*found->second), [&](const char* name, auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          const Scales scales = state_scales(p);
          if (value.defined() && moment < scales.size())
            check_low_bit_state(*this, p, value, scales[moment++], c10::str("state.", number, ".", name));
        }
      });
    });
    return true;
  });
}

void LibtorchOptimizer::load(torch::serialize::InputArchive& archive) {
  Kept kept(*this);
  device_steps_.clear();
  skipped_steps_.reset();
  for_each_parameter(param_groups_, [&](const std::string& number, const at::Tensor& p) {
    at::Tensor master;
    if (archive.try_read("master_weight." + number, master)) set_master_weight(p, master);
    Scales scales;
    bool any = false;
    for (size_t k = 0; k < scales.size(); ++k) any |= archive.try_read(scale_key(number, k), scales[k]);
    if (any) set_state_scales(p, scales);
  });
  if (at::Tensor count; rounds_at_random() && archive.try_read("rounding_count", count))
    rounding_count_ = count.item<int64_t>();
  {
    const Lend lend(*this, *reference_);
    reference_->load(archive);
  }
  check_loaded_state();
  kept.drop();
  forget_incomplete_step();
}

}  // namespace bellows::optim
