// What an optimizer keeps beside its parameters: master weights, state of any type, counts of steps; and its archives.
#include <torch/torch.h>

#include "bellows/core/error.h"
#include "bellows/kernels/dynamic_map.h"
#include "bellows/kernels/stochastic_round.h"
#include "bellows/optim/fused/fused_impl.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/fields_impl.h"
#include "bellows/optim/state/lend_impl.h"

namespace bellows::optim {

using torch::optim::OptimizerParamGroup;

/// Puts everything that a state consists of back as it was, unless it is dropped.
class LibtorchOptimizer::Kept {
 public:
  explicit Kept(LibtorchOptimizer& optimizer) : optimizer_(optimizer), rounding_count_(optimizer.rounding_count_) {
    optimizer.settle_steps();
    for (const OptimizerParamGroup& group : optimizer.param_groups_) options_.push_back(group.options().clone());
    // From here on nothing throws: the destructor does not run for a constructor that did.
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

void check_scale(const at::Tensor& p, int64_t block, const at::Tensor& scale, const std::string& name) {
  const int64_t blocks = (p.numel() + block - 1) / block;
  TORCH_CHECK_VALUE(scale.dim() == 1 && scale.size(0) == blocks, "load: the scales of \"", name, "\" have shape ",
                    scale.sizes(), ", expected [", blocks, "], one for each ", block,
                    " elements. It was saved with another block size or state_dtype.");
}

}  // namespace

void check_low_bit_state(const LibtorchOptimizer& optimizer, const at::Tensor& p, const at::Tensor& value,
                         const at::Tensor& scale, const std::string& name) {
  const int64_t block = optimizer.state_block(p);
  TORCH_CHECK_VALUE((value.scalar_type() == at::kByte) == (block > 0), "load: \"", name, "\" is ", value.scalar_type(),
                    ", this optimizer keeps ", block > 0 ? "low-bit state" : "floating-point state",
                    " for that parameter. Construct it with the state_dtype and min_8bit_size of the saved one.");
  if (block == 0) return;
  TORCH_CHECK_VALUE(value.sizes() == at::IntArrayRef(optimizer.state_sizes(p)), "load: \"", name, "\" has shape ",
                    value.sizes(), ", expected ", optimizer.state_sizes(p),
                    ". It belongs to another model, or was saved with another block size or state_dtype.");
  const bool in_order = value.dim() != p.dim() || same_layout(value, at::empty_like(p, p.options().device(at::kMeta)));
  TORCH_CHECK_VALUE(in_order, "load: \"", name, "\" has strides ", value.strides(), ", its parameter ", p.strides(),
                    ". Low-bit blocks follow the memory: bring the model into the layout it was saved in.");
  TORCH_CHECK_VALUE(scale.defined(), "load: the scales of \"", name,
                    "\" are missing. The state is not whole, or belongs to another optimizer.");
  check_scale(p, block, scale, name);
}

// --- master weights and step counts

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
                    ": there is a master weight for a parameter that keeps none. Construct the optimizer with "
                    ".master_weights = true and bf16 or fp16 parameters.");
  masters_[parameter.unsafeGetTensorImpl()] = std::move(master);
}

void LibtorchOptimizer::refresh_master_weights() {
  masters_.clear();
}

// --- what state looks like

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
  TORCH_CHECK_VALUE(numel >= p.numel(), common_.name, ": a part of ", p.numel(), " elements cannot be one of ", numel,
                    ".");
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
  TORCH_CHECK_VALUE(block > 0, common_.name, ": there are scales of low-bit state for a parameter that keeps none. ",
                    "Construct the optimizer with the state_dtype and min_8bit_size that it was saved with.");
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
  // With scales of zero every code is zero.
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

namespace {

/// Calls `f(number, parameter)` for each parameter; its number counts over all groups.
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
  // Lending and settling leave what this object means as it was.
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
