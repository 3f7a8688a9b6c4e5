#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bellows/core/scaled_step.h"
#include "bellows/optim/groups.h"

namespace bellows::optim {

/// How a step is executed. The state does not depend on the implementation, so you can change it between two steps or
/// runs.
enum class Impl {
  automatic,  ///< fused if available; otherwise loop on the CPU, or foreach on an accelerator
  loop,       ///< libtorch's own optimizer: one parameter after another, with about twelve operators each
  foreach,    ///< operators over lists of tensors; on the CPU, the lists fit in the cache
  fused,      ///< one pass over each tensor's memory
};

/// How a parameter's moments are stored.
enum class State {
  automatic,  ///< the parameter's dtype; fp32 with master weights
  int8,       ///< one byte per element, as in bitsandbytes: a dynamic map and one fp32 scale per 256 elements
  /// Half a byte per element and one scale per 128 elements. The first moment uses a dynamic map. The second moment
  /// uses a linear map without zero.
  int4,
};

// Common options of the optimizers:
// - `impl`: how a step is executed. Sparse gradients always use the loop.
// - `maximize`: maximizes the objective instead of minimizing it.
// - `master_weights`: updates bf16 and fp16 parameters in fp32. State and master weights are in fp32, and the
//   parameters are rounded copies of the master weights. If this option is off, arithmetic and state are in the
//   parameter's dtype, as in Python.
// - `state_dtype`: stores state in int8 or int4. This requires fused steps (CUDA: untested), dense gradients, and fp32,
//   bf16 or fp16 parameters. The memory layout of a parameter must not change after the first step. For int4, it must
//   be row-major. If the gradient of an element is NaN or infinite, or if its square exceeds the range of fp32, the new
//   moments would not be finite. The step then changes neither the element nor its moments, because such moments would
//   corrupt all elements that share their scale.
// - `min_8bit_size`: parameters with fewer elements keep their state in fp32, even if `state_dtype` is int8 or int4.
// - `stochastic_rounding`: rounds bf16 parameters without master weights stochastically. On average, small updates are
//   then not lost. The same rounding_seed gives the same result for any number of threads or ranks. Only fused steps
//   support it.
// - `lr_tensor`: a 0-d tensor that replaces `lr` for all groups. It is read at every step. On the CPU, each step also
//   sets the groups' `lr` to its value. On an accelerator, the fused step reads it without a host synchronization.

/// Options as in torch.optim.SGD.
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

/// Options as in torch.optim.Adam.
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

/// Options as in torch.optim.AdamW.
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

/// Options as in torch.optim.RMSprop.
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

/// Options as in torch.optim.Adagrad.
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

/// Options of Lion, as in its paper. Compared with AdamW, the paper recommends a learning rate that is 3 to 10 times
/// smaller, and a weight decay that is larger by the same factor.
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

/// LARC: an adaptive learning rate for each parameter, from the norms of the parameter and of its gradient. It works
/// with every optimizer above. The names and values are those of apex.parallel.LARC.
struct LarcOptions {
  double trust_coefficient = 0.02;
  bool clip = true;  ///< use the smaller one of the adaptive rate and lr. Otherwise, their product
  double eps = 1e-8;
};

/// Arguments of a fused step in addition to a group's options (fused/fused_step.h).
struct FusedStep;

/// Base class of the optimizers. Options and state use libtorch's own classes. `param_groups()`, `state()`,
/// `torch::save` and `torch::load` therefore work as with libtorch's optimizer of the same name. The parameters of a
/// group can differ in device and dtype.
/// Numerics: on the CPU, loop and foreach are bit-identical to libtorch's optimizer. Fused steps differ from these by
///           the rounding of individual operations. They equal Python's optimizers to 1e-12 in float64
///           (tests/optim/golden_test.cpp).
/// Threads:  not thread-safe
/// Throws:   c10::ValueError if there are no parameters, or if options are out of range, NaN or of the wrong class.
///           step() also throws it for sparse gradients that the rule does not support, and for gradients of the wrong
///           shape or device. c10::Error in step() if an earlier step failed (for example, because memory ran out)
///           while it changed weights. Load a state to clear this error. A step that fails before it changes weights
///           changes nothing.
class LibtorchOptimizer : public torch::optim::Optimizer, public ScaledStep {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

  /// Updates the parameters with the existing gradients. Parameters without a gradient are not changed.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  Impl impl() const { return impl_; }
  /// Throws: c10::ValueError for loop and foreach if the optimizer has low-bit state or stochastic rounding, which only
  ///         fused supports
  void set_impl(Impl impl);
  /// Returns the implementation that the next step() will use with the current gradients.
  Impl next_impl() const;
  bool maximize() const { return common_.maximize; }

  /// True if the next step is fused. On the CPU, a fused step does not change the gradients. On CUDA, libtorch's
  /// kernels overwrite them with the unscaled gradients.
  bool takes_grad_scale() const override;
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found_inf) override;

  /// Sets a tensor as the learning rate of all groups. An undefined tensor restores the learning rates of the groups.
  void set_lr_tensor(at::Tensor lr);
  const at::Tensor& lr_tensor() const { return common_.lr_tensor; }

  /// Switches LARC on, or off without options. Before each step, gradient g of parameter p is then replaced with
  /// a · (g + weight_decay · p), where a = trust_coefficient · |p| / (|g| + weight_decay · |p| + eps). With `clip`, a
  /// is divided by lr and limited to 1. The step itself has no weight decay. If a norm is 0, g does not change. LARC
  /// has no state.
  /// Throws: c10::ValueError if an option is out of range, or if the optimizer normalizes gradients itself (Adafactor,
  ///         Lamb, NovoGrad, Muon). step() throws for sparse gradients
  /// Ref:    arXiv:1708.03888; apex.parallel.LARC
  void set_larc(const std::optional<LarcOptions>& options);
  const std::optional<LarcOptions>& larc() const { return larc_; }

  /// Returns whether an element's update depends on other elements of its parameter, so that parts of a parameter
  /// cannot be updated separately.
  bool needs_whole_parameters() const { return common_.whole_parameters || larc_; }
  /// Returns whether a parameter's update depends on the gradients of other parameters.
  bool needs_all_gradients() const;

  bool keeps_master(const at::Tensor& parameter) const;
  /// Returns the fp32 master weight of a parameter. It is undefined if the parameter has no master weight, or does not
  /// have one yet.
  at::Tensor master_weight(const at::Tensor& parameter) const;
  void set_master_weight(const at::Tensor& parameter, at::Tensor master);
  /// Call this function after you change the parameters yourself. The next step then creates the master weights again
  /// from the parameters.
  void refresh_master_weights();
  /// Returns the dtype of a parameter's state, which is kByte for low-bit state.
  at::ScalarType state_dtype(const at::Tensor& parameter) const;
  /// Returns the shape of a parameter's state. It is the parameter's shape, or the number of bytes for int4.
  std::vector<int64_t> state_sizes(const at::Tensor& parameter) const;
  /// The scales of low-bit state: an fp32 tensor [blocks] for each moment. They are undefined for other kinds of state,
  /// and before the first step.
  using Scales = std::array<at::Tensor, 2>;
  Scales state_scales(const at::Tensor& parameter) const;
  void set_state_scales(const at::Tensor& parameter, Scales scales);
  /// Returns the number of consecutive elements in memory that share a scale, or 0 for a parameter without low-bit
  /// state.
  int64_t state_block(const at::Tensor& parameter) const;
  /// Returns the number of bytes of such a block, without its scale.
  int64_t state_block_bytes() const;
  /// Declares that a parameter is part of a larger parameter with `numel` elements. `min_8bit_size` is then compared
  /// with `numel`. Sharded optimizers call this function.
  void set_whole_numel(const at::Tensor& parameter, int64_t numel);
  bool has_low_bit_state() const { return common_.state != State::automatic; }
  bool rounds_at_random() const { return common_.stochastic_rounding; }
  /// The number of tensors that have been rounded stochastically. Together with the seed, this number determines the
  /// next roundings.
  int64_t rounding_count() const { return rounding_count_; }
  void set_rounding_count(int64_t count) { rounding_count_ = count; }
  /// Reads step counts from devices and from deferred steps. Some of these steps may have been skipped because
  /// gradients were infinite or NaN. Functions that save the state call this function.
  void settle_steps();
  /// Call this function after you restore weights and state. step() then no longer throws because of an earlier failed
  /// step.
  void forget_incomplete_step() { incomplete_ = false; }

 protected:
  struct Common {
    const char* name;
    bool maximize, master_weights;
    at::Tensor lr_tensor;
    bool sparse;     ///< the loop supports sparse gradients
    bool aten_cuda;  ///< libtorch has a fused CUDA kernel
    State state = State::automatic;
    int64_t min_8bit_size = 0;
    bool stochastic_rounding = false;
    uint64_t rounding_seed = 0;
    bool own_cuda = true;           ///< kernels/cuda supports the rule
    bool whole_parameters = false;  ///< the update of an element depends on its whole parameter
  };
  template <class Options>
  static Common common_of(const char* name, const Options& o, bool sparse, bool aten_cuda) {
    Common c{name, o.maximize, o.master_weights, o.lr_tensor, sparse, aten_cuda};
    if constexpr (requires { o.state_dtype; }) c.state = o.state_dtype, c.min_8bit_size = o.min_8bit_size;
    if constexpr (requires { o.rounding_seed; })
      c.stochastic_rounding = o.stochastic_rounding, c.rounding_seed = o.rounding_seed;
    return c;
  }
  /// Params: reference – libtorch's optimizer without parameters. It is used for Impl::loop
  LibtorchOptimizer(std::unique_ptr<torch::optim::Optimizer> reference, const ParamGroups& groups, Impl impl,
                    Common common);
  static ParamGroups one_group(std::vector<at::Tensor> parameters);
  static ParamGroups with_options(const std::vector<PatternGroup>& groups,
                                  const torch::optim::OptimizerOptions& defaults);

  /// Throws: c10::ValueError if the options are out of range
  virtual void check(const torch::optim::OptimizerOptions& options) const = 0;
  /// Runs one step for the dense gradients of one parameter group.
  virtual void step_foreach(torch::optim::OptimizerParamGroup& group) = 0;
  virtual void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) = 0;
  /// Creates the state that the loop expects.
  virtual void before_loop() {}
  virtual int64_t* step_count(torch::optim::OptimizerParamState&) const { return nullptr; }

 private:
  friend struct OptimizerInternals;
  class Undo;
  class Working;
  class Kept;
  class Larc;

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
  bool incomplete_ = false;  ///< a step failed while it changed weights
  std::unordered_map<void*, at::Tensor> masters_, device_steps_;
  at::Tensor skipped_steps_;     ///< 0-d: number of skipped deferred steps, which the step counts in the state include
  size_t stepped_together_ = 0;  ///< number of parameters in the last step if all of them took part; otherwise 0
  std::unordered_map<void*, Scales> scales_;
  std::unordered_map<void*, int64_t> whole_numels_;  ///< values of set_whole_numel()
  int64_t rounding_count_ = 0;
  std::optional<LarcOptions> larc_;
};

/// Stochastic gradient descent with momentum.
/// Ref:      torch.optim.SGD
class SGD : public LibtorchOptimizer {
 public:
  SGD(std::vector<at::Tensor> parameters, const SGDOptions& options);
  /// Params: groups – groups with options of class torch::optim::SGDOptions; groups without options use `options`
  SGD(const ParamGroups& groups, const SGDOptions& options);
  SGD(const std::vector<PatternGroup>& groups, const SGDOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
};

/// Adam, with weight decay that is added to the gradient.
/// Ref: torch.optim.Adam; arXiv:1412.6980
class Adam : public LibtorchOptimizer {
 public:
  Adam(std::vector<at::Tensor> parameters, const AdamOptions& options);
  /// Params: groups – groups with options of class torch::optim::AdamOptions; groups without options use `options`
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
  /// Params: groups – groups with options of class torch::optim::AdamWOptions; groups without options use `options`
  AdamW(const ParamGroups& groups, const AdamWOptions& options);
  AdamW(const std::vector<PatternGroup>& groups, const AdamWOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Divides each gradient by the running root mean square of the gradients.
/// Ref: torch.optim.RMSprop
class RMSprop : public LibtorchOptimizer {
 public:
  RMSprop(std::vector<at::Tensor> parameters, const RMSpropOptions& options);
  /// Params: groups – groups with options of class torch::optim::RMSpropOptions; groups without options use `options`
  RMSprop(const ParamGroups& groups, const RMSpropOptions& options);
  RMSprop(const std::vector<PatternGroup>& groups, const RMSpropOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Divides each gradient by the root of the sum of all squared gradients so far. Supports sparse gradients.
/// Ref: torch.optim.Adagrad
class Adagrad : public LibtorchOptimizer {
 public:
  Adagrad(std::vector<at::Tensor> parameters, const AdagradOptions& options);
  /// Params: groups – groups with options of class torch::optim::AdagradOptions; groups without options use `options`
  Adagrad(const ParamGroups& groups, const AdagradOptions& options);
  Adagrad(const std::vector<PatternGroup>& groups, const AdagradOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
  void before_loop() override;
  int64_t* step_count(torch::optim::OptimizerParamState& state) const override;
};

/// Updates all elements by the same amount. The sign of a moving average of the gradients determines the direction.
/// Ref: arXiv:2302.06675
class Lion : public LibtorchOptimizer {
 public:
  Lion(std::vector<at::Tensor> parameters, const LionOptions& options);
  /// Params: groups – groups with options of class LionGroupOptions (lion.h); groups without options use `options`
  Lion(const ParamGroups& groups, const LionOptions& options);
  Lion(const std::vector<PatternGroup>& groups, const LionOptions& options);

 protected:
  void check(const torch::optim::OptimizerOptions& options) const override;
  void step_foreach(torch::optim::OptimizerParamGroup& group) override;
  void step_fused(torch::optim::OptimizerParamGroup& group, const FusedStep& step) override;
};

}  // namespace bellows::optim
