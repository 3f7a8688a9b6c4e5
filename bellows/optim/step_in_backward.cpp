#include "bellows/optim/step_in_backward.h"

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include <typeinfo>
#include <utility>

#include "bellows/core/backward_steps.h"
#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/offloaded_state.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::optim {

namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

/// While it lives, the groups contain only one parameter.
class OnlyOne {
 public:
  OnlyOne(Groups& groups, size_t group, const at::Tensor& parameter) : groups_(groups), others_(groups.size()) {
    others_[group].push_back(parameter);
    exchange();  // does not allocate: if the constructor threw, the groups would stay empty
  }
  ~OnlyOne() { exchange(); }
  OnlyOne(const OnlyOne&) = delete;
  OnlyOne& operator=(const OnlyOne&) = delete;

 private:
  void exchange() {
    for (size_t g = 0; g < groups_.size(); ++g) groups_[g].params().swap(others_[g]);
  }
  Groups& groups_;
  std::vector<std::vector<at::Tensor>> others_;
};

}  // namespace

/// Clipping and unscaling ask the owner of gradients that are not in the usual place; this class throws then.
class StepInBackward::Steps : public ShardedGradients {
 public:
  Steps(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options) : optimizer_(optimizer) {
    const std::string type = c10::demangle(typeid(optimizer).name());
    TORCH_CHECK_VALUE(type.find("LBFGS") == std::string::npos, "step_in_backward: ", type,
                      " updates all parameters together. Use an optimizer that updates each parameter separately.");
    const auto* const ours = dynamic_cast<const LibtorchOptimizer*>(&optimizer);
    TORCH_CHECK_VALUE(!ours || !ours->needs_all_gradients(), "step_in_backward: ", type,
                      " clips by the norm of all gradients, which backward has not computed yet when it updates the ",
                      "first parameter. Set max_grad_norm to 0.");
    std::vector<std::pair<at::Tensor, at::Tensor>> owned;
    size_t index = 0;
    for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      for (const at::Tensor& p : optimizer.param_groups()[g].params()) {
        TORCH_CHECK_VALUE(!p.grad().defined(), "step_in_backward: parameter ", index,
                          " already has a gradient, but every backward pass is a separate step. Finish the ",
                          "accumulation with step() and zero_grad() first.");
        ++index;
        if (!p.requires_grad()) continue;
        taps_.push_back(
            std::make_unique<tap::GradientTap>(p, [this, g](const at::Tensor& arrived) { step(arrived, g); }));
        owned.emplace_back(p, p);
      }
    }
    if (options.offload_state) state_ = std::make_unique<OffloadedState>(optimizer, options);
    entry_ = std::make_unique<ShardedGradientsEntry>(*this, std::move(owned));
  }
  virtual ~Steps() = default;

  at::Tensor over_ranks(at::Tensor, Over) const override {
    TORCH_CHECK_VALUE(false, BackwardSteps::gradients_are_freed);
  }

  OffloadedState* state() const { return state_.get(); }

 private:
  void step(const at::Tensor& parameter, size_t group) {
    const c10::AutoGradMode no_graph(false);
    const MutexLock lock(mutex_);
    TORCH_CHECK_VALUE(!parameter.grad().requires_grad(), BackwardSteps::needs_no_graph);
    TORCH_CHECK(
        !incomplete_,
        "step_in_backward: the step of a parameter failed in an earlier backward pass, so others may be one step ",
        "ahead of it. Load a checkpoint into the model and the optimizer, and call step_in_backward() again.");
    incomplete_ = true;
    if (state_) state_->before_step(parameter);
    {
      const OnlyOne only(optimizer_.param_groups(), group, parameter);
      optimizer_.step();
    }
    parameter.mutable_grad().reset();
    if (state_) state_->after_step(parameter);
    incomplete_ = false;
  }

  torch::optim::Optimizer& optimizer_;
  Mutex mutex_;
  bool incomplete_ BELLOWS_GUARDED_BY(mutex_) = false;  ///< a parameter's step failed
  std::unique_ptr<OffloadedState> state_;
  std::vector<std::unique_ptr<tap::GradientTap>> taps_;
  std::unique_ptr<ShardedGradientsEntry> entry_;
};

StepInBackward::StepInBackward(torch::optim::Optimizer& optimizer, const StepInBackwardOptions& options) {
  auto* const own = dynamic_cast<BackwardSteps*>(&optimizer);
  TORCH_CHECK_VALUE(!own || !options.offload_state, "step_in_backward: offload_state does not work with an optimizer ",
                    "that is already sharded. Set offload_state of parallel::zero_optimizer() instead.");
  if (own) {
    sharded_ = own->step_in_backward();
  } else {
    steps_ = std::make_unique<Steps>(optimizer, options);
  }
}
StepInBackward::~StepInBackward() = default;

OffloadedStateStats StepInBackward::state_stats() const {
  return steps_ && steps_->state() ? steps_->state()->stats() : OffloadedStateStats();
}

void StepInBackward::wait() {
  if (steps_ && steps_->state()) steps_->state()->wait();
}

std::unique_ptr<StepInBackward> step_in_backward(torch::optim::Optimizer& optimizer,
                                                 const StepInBackwardOptions& options) {
  return std::make_unique<StepInBackward>(optimizer, options);
}

}  // namespace bellows::optim
