#include "bellows/amp/policy.h"

#include <ATen/ops/empty_like.h>

#include "bellows/amp/autocast.h"
#include "bellows/amp/module_types.h"
#include "bellows/amp/weight_shapes.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"

namespace bellows::amp {

namespace {

bool is_low(c10::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

std::string word(c10::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bf16";
  if (dtype == at::kHalf) return "fp16";
  return dtype == at::kFloat ? "fp32" : c10::str(dtype);
}

void check(const Policy& policy) {
  const bool low = policy.autocast || policy.low_weights;
  TORCH_CHECK_VALUE(low ? is_low(policy.dtype) : policy.dtype == at::kFloat, "amp: policy ", policy.name,
                    low ? " has low precision and needs dtype bf16 or fp16" : " keeps fp32 and needs dtype fp32",
                    ", got ", policy.dtype, ".");
  TORCH_CHECK_VALUE(policy.low_weights || !(policy.norms_fp32 || policy.master_weights), "amp: policy ", policy.name,
                    " requests fp32 norms or master weights, but its weights are fp32 already. Set low_weights, or "
                    "leave both out.");
}

/// The same model, with casts of its inputs and outputs.
class PolicyModel final : public ModelWrapper {
 public:
  PolicyModel(Model inner, Policy policy) : ModelWrapper(std::move(inner)), policy_(std::move(policy)) {}

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    const tap::FastHalfGuard fast_half(policy_.dtype == at::kHalf && inputs.front().is_cpu());
    std::unique_ptr<AutocastGuard> guard;
    if (policy_.autocast) guard = std::make_unique<AutocastGuard>(inputs.front().device().type(), policy_.dtype);
    std::vector<at::Tensor> cast = inputs;
    for (at::Tensor& input : cast) {
      if (policy_.low_weights && input.defined() && input.is_floating_point()) input = input.to(policy_.dtype);
    }
    std::vector<at::Tensor> outputs = inner().forward_all(cast);
    for (at::Tensor& output : outputs) {
      if (output.scalar_type() == policy_.dtype) output = output.to(at::kFloat);
    }
    return outputs;
  }

 private:
  Policy policy_;
};

/// The tensors of `model` to cast: floating-point tensors, except those of norms if norms stay in fp32.
NamedTensors chosen(const Model& model, const NamedTensors& tensors, const Policy& policy) {
  const auto types = module_types(model);
  TORCH_CHECK_VALUE(!policy.norms_fp32 || !types.empty(), "amp::apply: policy ", policy.name,
                    " keeps norms in fp32, but model \"", model.name(),
                    "\" has no information about its modules, so its norms cannot be found. Use O0, O1 or O3.");
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    const auto type = types.find(owner_of(name));
    const bool norm = type != types.end() && type->second.find("Norm") != std::string::npos;
    if (tensor.is_floating_point() && !(norm && policy.norms_fp32)) result.emplace_back(name, tensor);
  }
  return result;
}

std::string line(const char* what, const std::string& text) {
  return c10::str("\n  ", what, std::string(11 - std::string_view(what).size(), ' '), text);
}

}  // namespace

Policy policy(std::string_view level, c10::ScalarType dtype) {
  const bool known = level.size() == 2 && (level[0] == 'O' || level[0] == 'o' || level[0] == '0') && level[1] >= '0' &&
                     level[1] <= '3';
  TORCH_CHECK_VALUE(known, "amp::policy: expected O0, O1, O2 or O3, got \"", level, "\".");
  if (level[1] == '0') return {};
  Policy result{.name = std::string("O") + level[1], .dtype = dtype, .loss_scaling = dtype == at::kHalf};
  result.autocast = level[1] != '3';
  result.low_weights = level[1] != '1';
  result.norms_fp32 = result.master_weights = level[1] == '2';
  check(result);
  return result;
}

std::string describe(const Policy& policy) {
  check(policy);
  const std::string dtype = word(policy.dtype);
  const std::string weights = policy.low_weights ? dtype : "fp32";
  const std::string norms = policy.norms_fp32 ? "; norms fp32" : "";
  std::string forward = "all operators in " + weights;
  if (policy.autocast) {
    forward = "autocast: matmuls and convolutions in " + dtype + "; losses and operators that may overflow in fp32" +
              (policy.low_weights ? "" : "; weights are cast once per step");
  }
  return policy.name + " " + dtype + line("weights", weights + norms) + line("forward", forward) +
         line("boundary", policy.low_weights ? "input is cast to " + dtype + ", output to fp32"
                          : policy.autocast  ? "output is cast to fp32"
                                             : "no casts") +
         line("gradients", weights + norms) +
         line("optimizer", policy.master_weights
                               ? "works on fp32 master weights, rounded to " + dtype + " after each step"
                               : "works on the " + weights + " weights") +
         line("loss",
              policy.loss_scaling ? "scaled by a GradScaler, because small gradients would become zero" : "not scaled");
}

GradScalerOptions scaler_options(const Policy& policy) {
  return {.enabled = policy.loss_scaling, .allow_fp16 = policy.low_weights && !policy.master_weights};
}

PreparedModel apply(const Model& model, const Policy& policy) {
  check(policy);
  const no_grad no_graph;
  const auto dtype = policy.low_weights ? policy.dtype : at::kFloat;
  const NamedTensors parameters = chosen(model, model.named_parameters(), policy);
  const NamedTensors buffers = chosen(model, model.named_buffers(), policy);
  std::vector<at::Tensor> originals;
  for (const auto& [name, tensor] : parameters) originals.push_back(tensor.detach().to(at::kFloat));
  cast_in_place(parameters, dtype);
  cast_in_place(buffers, dtype);
  MasterWeights masters;
  if (policy.master_weights) masters = MasterWeights(parameters, std::move(originals));
  return {.model = Model(model.name(), std::make_shared<PolicyModel>(model, policy)), .masters = std::move(masters)};
}

Model apply_without_values(const Model& model, const Policy& policy) {
  check(policy);
  const no_grad no_graph;
  const auto dtype = policy.low_weights ? policy.dtype : at::kFloat;
  for (auto [name, parameter] : chosen(model, model.named_parameters(), policy)) {
    if (parameter.scalar_type() != dtype)
      parameter.set_data(at::empty_like(parameter, parameter.options().dtype(dtype)));
  }
  cast_in_place(chosen(model, model.named_buffers(), policy), dtype);
  return Model(model.name(), std::make_shared<PolicyModel>(model, policy));
}

}  // namespace bellows::amp
