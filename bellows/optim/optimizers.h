#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bellows/core/scaled_step.h"
#include "bellows/optim/groups.h"

namespace bellows::optim {

/// How a step is carried out. The state is the same, so an implementation can be changed between two steps or two runs.
enum class Impl {
  automatic,  ///< the fastest that can do it: fused, then loop on the CPU; fused, then foreach on an accelerator
  loop,       ///< libtorch's own optimizer: parameter after parameter, a dozen operators each
  foreach,    ///< operator after operator over lists of tensors; on the CPU in lists that fit the cache
  fused,      ///< one sweep over each tensor's memory
};

/// What a parameter's moments are kept in.
enum class State {
  automatic,  ///< the parameter's type; fp32 where there is a master weight
  int8,       ///< a byte each, as bitsandbytes: a dynamic map, and one fp32 scale for each 256 elements
  int4,       ///< half a byte each, a scale for 128: the first by a dynamic map, the second linearly without zero
};

// Options that all have in common:
//   impl            how a step is carried out; gradients that are sparse take the loop whatever is asked for
//   maximize        climbs instead of descending
//   master_weights  bf16 and fp16 parameters are updated in fp32: state and a master copy of the weights are fp32, the
//                   parameters their rounded copies. Without it everything has the parameter's type, as in Python
//   state_dtype     int8 and int4: fused steps of dense gradients (CUDA: untested), of fp32, bf16 and fp16 parameters that
//                   lie in one memory layout from the first step on (int4: row-major). An element whose new moments
//                   would not be finite (a NaN or infinity in its gradient, a square beyond fp32) keeps parameter and
//                   moments: it must not spoil the block it shares a scale with
//   min_8bit_size   with low-bit state, parameters of fewer elements keep theirs in fp32
//   stochastic_rounding
//                   bf16 parameters without master are rounded up or down at random, such that small steps are kept on
//                   average; the same for the same rounding_seed on any number of threads or ranks. Fused
//   lr_tensor       0-d; takes the place of `lr` for all groups and is read at every step: on the CPU it also becomes
//                   the groups' `lr`; on an accelerator the fused step reads it without the host waiting

/// As torch.optim.SGD's.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool master_weights = false;
  State state_dtype = State::automatic;
  int64_t min_8bit_size = 4096;
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// As torch.optim.Adam's.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool master_weights = false;
  State state_dtype = State::automatic;
  int64_t min_8bit_size = 4096;
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// As torch.optim.AdamW's.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  bool master_weights = false;
  State state_dtype = State::automatic;
  int64_t min_8bit_size = 4096;
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// As torch.optim.RMSprop's.
struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  bool master_weights = false;
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// As torch.optim.Adagrad's.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  bool master_weights = false;
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// As the paper's; its advice is a learning rate 3 to 10 times smaller and a decay as much larger than AdamW's.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  bool maximize = false;
  bool master_weights = false;
  State state_dtype = State::automatic;
  int64_t min_8bit_size = 4096;
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  at::Tensor lr_tensor = {};
  Impl impl = Impl::automatic;
};

/// What a fused step heeds beside a group's options (fused_impl.h).
struct FusedStep;

/// What the optimizers of this component share. Options and state are of libtorch's own classes, so `param_groups()`,
/// `state()`, `torch::save` and `torch::load` see what libtorch's optimizer of the same name would show them.
/// Parameters of a group may differ in device and type.
/// Numerics: loop and foreach are bit for bit libtorch's optimizer on the CPU; fused differs from them by the rounding
///           of single operations, and equals Python's to 1e-12 in float64 (tests/optim/golden_test.cpp)
/// Threads:  one thread at a time
/// Throws:   c10::ValueError – no parameters; options out of range or not numbers; options of another class. step():
///           sparse gradients where the rule has no meaning for them; a gradient of another shape or device
///           c10::Error – step() after one that failed (out of memory) while it changed weights, until state is loaded;
///           one that failed before leaves all as it was
class LibtorchOptimizer : public torch::optim::Optimizer, public ScaledStep {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

  /// Applies the gradients that are there; a parameter without one is left alone.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  Impl impl() const { return impl_; }
  /// Throws: c10::ValueError – low-bit state or stochastic rounding, which are fused only
  void set_impl(Impl impl);
  /// What the next step() will take, with the gradients that are there now.
  Impl next_impl() const;
  bool maximize() const { return common_.maximize; }

  /// True when the next step is fused. On the CPU it leaves the gradients as they are; libtorch's CUDA kernels write the
  /// unscaled ones back.
  bool takes_grad_scale() const override;
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) override;

  /// Makes a tensor the learning rate of all groups; an undefined one returns to the groups' numbers.
  void set_lr_tensor(at::Tensor lr);
  const at::Tensor& lr_tensor() const { return common_.lr_tensor; }

  bool keeps_master(const at::Tensor& parameter) const;
  /// The fp32 copy of a parameter; undefined if it has none (yet).
  at::Tensor master_weight(const at::Tensor& parameter) const;
  void set_master_weight(const at::Tensor& parameter, at::Tensor master);
  /// To be called when the parameters were changed from outside: the master copies follow them.
  void refresh_master_weights();
  /// The type that the state of a parameter has; kByte for low-bit state.
  at::ScalarType state_dtype(const at::Tensor& parameter) const;
  /// And its shape: the parameter's, but of int4 the number of bytes.
  std::vector<int64_t> state_sizes(const at::Tensor& parameter) const;
  /// Low-bit state belongs together with the scales of its blocks, fp32 [blocks] for each moment: undefined for state of
  /// another kind, or where there is none (yet).
  using Scales = std::array<at::Tensor, 2>;
  Scales state_scales(const at::Tensor& parameter) const;
  void set_state_scales(const at::Tensor& parameter, Scales scales);
  /// Elements that share a scale, in the order of memory; 0 for a parameter whose state is not low-bit.
  int64_t state_block(const at::Tensor& parameter) const;
  /// And the bytes of their codes.
  int64_t state_block_bytes() const;
  /// Says that a parameter is part of one of so many elements, by which `min_8bit_size` goes: a sharded optimizer's are.
  void set_whole_numel(const at::Tensor& parameter, int64_t numel);
  bool has_low_bit_state() const { return common_.state != State::automatic; }
  bool rounds_at_random() const { return common_.stochastic_rounding; }
  /// How many tensors were rounded at random so far: with the seed, what the next ones depend on.
  int64_t rounding_count() const { return rounding_count_; }
  void set_rounding_count(int64_t count) { rounding_count_ = count; }
  /// Fetches step counts that a device, or deferred steps, keep while infinite gradients may skip steps. Saving does it by itself.
  void settle_steps();
  /// To be called when weights and state were restored: ends the refusal of steps after one that failed half way.
  void forget_incomplete_step() { incomplete_ = false; }

 protected:
  struct Common {
    const char* name;
    bool maximize, master_weights;
    at::Tensor lr_tensor;
    bool sparse;     ///< the loop takes sparse gradients
    bool aten_cuda;  ///< libtorch has a fused CUDA kernel
    State state = State::automatic;
    int64_t min_8bit_size = 0;
    bool stochastic_rounding = false;
    uint64_t rounding_seed = 0;
    bool own_cuda = true;  ///< kernels/cuda knows the rule
  };
  template <class Options>
  static Common common_of(const char* name, const Options& o, bool sparse, bool aten_cuda) {
    Common c{name, o.maximize, o.master_weights, o.lr_tensor, sparse, aten_cuda};
    if constexpr (requires { o.state_dtype; }) c.state = o.state_dtype, c.min_8bit_size = o.min_8bit_size;
    if constexpr (requires { o.rounding_seed; })
      c.stochastic_rounding = o.stochastic_rounding, c.rounding_seed = o.rounding_seed;
    return c;
  }
  /// Params: reference – libtorch's optimizer without parameters, which carries out Impl::loop
  LibtorchOptimizer(std::unique_ptr<torch::optim::Optimizer> reference, const ParamGroups& groups, Impl impl,
                    Common common);
  static ParamGroups one_group(std::vector<at::Tensor> parameters);
  static ParamGroups with_options(const std::vector<PatternGroup>& groups,
                                  const torch::optim::OptimizerOptions& defaults);

  /// Throws if the options make no sense.
  virtual void check(const torch::optim::OptimizerOptions& options) const = 0;
  /// One step over dense gradients of one parameter group.
  virtual void step_foreach(torch::optim::OptimizerParamGroup& group) = 0;
  virtual void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) = 0;
  /// What the loop expects to find.
  virtual void before_loop() {}
  virtual int64_t* step_count(torch::optim::OptimizerParamState&) const { return nullptr; }

 private:
  friend struct OptimizerInternals;
  class Undo;
  class Working;
  class Kept;

  at::Tensor master_of(const at::Tensor& parameter);
  const Scales& scales_of(const at::Tensor& parameter, int moments);
  bool fused_only() const { return has_low_bit_state() || rounds_at_random(); }
  void check_low_bit() const;
  void check_loaded_state() const;
  at::Tensor device_step(const at::Tensor& parameter, int64_t steps_before);
  void check_groups() const;
  void check_gradients() const;
  bool any_gradient(bool (*predicate)(const at::Tensor& parameter)) const;
  bool can_fuse(const at::Tensor& parameter) const;
  void read_lr_tensor(bool fused);
  void step_all_fused(const at::Tensor& grad_scale, const at::Tensor& found_inf);
  bool scale_on_cpu(FusedStep& step, const at::Tensor& grad_scale, const at::Tensor& found_inf);
  size_t stepping_together() const;
  void settle_skipped();
  void step_unfused(Impl impl);

  std::unique_ptr<torch::optim::Optimizer> reference_;
  Common common_;
  Impl impl_;
  at::Tensor grad_scale_, found_inf_;
  bool scaled_ = false;
  bool incomplete_ = false;  ///< a step failed while it changed the weights
  std::unordered_map<void*, at::Tensor> masters_, device_steps_;
  at::Tensor skipped_steps_;     ///< of deferred steps, which state counts all the same; 0-d
  size_t stepped_together_ = 0;  ///< parameters in the last step, if that were all
  std::unordered_map<void*, Scales> scales_;
  std::unordered_map<void*, int64_t> whole_numels_;  ///< of parameters that are parts
  int64_t rounding_count_ = 0;
};

/// Stochastic gradient descent with momentum.
/// Ref:      torch.optim.SGD
class SGD : public LibtorchOptimizer {
 public:
  SGD(std::vector<at::Tensor> parameters, const SGDOptions& options);
  /// Params: groups – with options of class torch::optim::SGDOptions, or none to take `options`
  SGD(const ParamGroups& groups, const SGDOptions& options);
  SGD(const std::vector<PatternGroup>& groups, const SGDOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
};

/// Adam; weight decay is added to the gradient.
/// Ref:      torch.optim.Adam; arXiv:1412.6980
class Adam : public LibtorchOptimizer {
 public:
  Adam(std::vector<at::Tensor> parameters, const AdamOptions& options);
  /// Params: groups – with options of class torch::optim::AdamOptions, or none to take `options`
  Adam(const ParamGroups& groups, const AdamOptions& options);
  Adam(const std::vector<PatternGroup>& groups, const AdamOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Adam with decoupled weight decay.
/// Ref:      torch.optim.AdamW; arXiv:1711.05101
class AdamW : public LibtorchOptimizer {
 public:
  AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options);
  /// Params: groups – with options of class torch::optim::AdamWOptions, or none to take `options`
  AdamW(const ParamGroups& groups, const AdamWOptions& options);
  AdamW(const std::vector<PatternGroup>& groups, const AdamWOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Divides gradients by the root of their mean square.
/// Ref:      torch.optim.RMSprop
class RMSprop : public LibtorchOptimizer {
 public:
  RMSprop(std::vector<at::Tensor> parameters, const RMSpropOptions& options);
  /// Params: groups – with options of class torch::optim::RMSpropOptions, or none to take `options`
  RMSprop(const ParamGroups& groups, const RMSpropOptions& options);
  RMSprop(const std::vector<PatternGroup>& groups, const RMSpropOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Divides gradients by the root of the sum of their squares; also for sparse gradients.
/// Ref:      torch.optim.Adagrad
class Adagrad : public LibtorchOptimizer {
 public:
  Adagrad(std::vector<at::Tensor> parameters, const AdagradOptions& options);
  /// Params: groups – with options of class torch::optim::AdagradOptions, or none to take `options`
  Adagrad(const ParamGroups& groups, const AdagradOptions& options);
  Adagrad(const std::vector<PatternGroup>& groups, const AdagradOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  void before_loop() override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Takes steps of one size in the direction of the sign of a moving average.
/// Ref:      arXiv:2302.06675
class Lion : public LibtorchOptimizer {
 public:
  Lion(std::vector<at::Tensor> parameters, const LionOptions& options);
  /// Params: groups – with options of class LionGroupOptions (lion.h), or none to take `options`
  Lion(const ParamGroups& groups, const LionOptions& options);
  Lion(const std::vector<PatternGroup>& groups, const LionOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
};

}  // namespace bellows::optim
