#include "bellows/tap/gradient_tap.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace bellows::tap {

namespace {

class ArrivedHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit ArrivedHook(GradientTap::Arrived arrived) : arrived_(std::move(arrived)) {}
  void operator()(const torch::autograd::Variable& parameter) override { arrived_(parameter); }

 private:
  GradientTap::Arrived arrived_;
};

}  // namespace

GradientTap::GradientTap(at::Tensor parameter, Arrived arrived) : parameter_(std::move(parameter)) {
  namespace impl = torch::autograd::impl;
  TORCH_CHECK_VALUE(parameter_.defined() && parameter_.is_leaf() && parameter_.requires_grad(),
                    "GradientTap: expected a leaf tensor that requires a gradient.");
  TORCH_CHECK_VALUE(!impl::post_acc_grad_hooks(parameter_), "GradientTap: this parameter of shape ", parameter_.sizes(),
                    " already has a post-accumulate-grad hook. libtorch supports one per tensor.");
  impl::set_post_acc_grad_hooks(parameter_, std::make_unique<ArrivedHook>(std::move(arrived)));
}

GradientTap::~GradientTap() {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_, nullptr);
}

int64_t backward_id() {
  return torch::autograd::get_current_graph_task_id();
}

void at_end_of_backward(std::function<void()> done) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(done));
}

}  // namespace bellows::tap
