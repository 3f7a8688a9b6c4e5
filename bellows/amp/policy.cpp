#include "bellows/amp/policy.h"

#include "bellows/amp/autocast.h"
#include "bellows/amp/module_types.h"
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
                    low ? " is of low precision and needs dtype bf16 or fp16" : " keeps fp32 and needs dtype fp32",
                    ", got ", policy.dtype, ".");
  TORCH_CHECK_VALUE(policy.low_weights || !(policy.norms_fp32 || policy.master_weights), "amp: policy ", policy.name,
                    " asks for fp32 norms or master weights beside weights that are fp32 anyway. Set low_weights, or "
                    "leave both out.");
}

/// The same model with casts at its boundary.
class PolicyModel final : public Model::Impl {
 public:
  PolicyModel(Model inner, Policy policy) : inner_(std::move(inner)), policy_(std::move(policy)) {}

  at::Tensor forward(const at::Tensor& input) override {
    std::unique_ptr<autocast> guard;
    if (policy_.autocast) guard = std::make_unique<autocast>(input.device().type(), policy_.dtype);
    const bool cast = policy_.low_weights && input.is_floating_point();
    const at::Tensor output = inner_.forward(cast ? input.to(policy_.dtype) : input);
    return output.scalar_type() == policy_.dtype ? output.to(at::kFloat) : output;
  }
  NamedTensors named_parameters() const override { return inner_.named_parameters(); }
  NamedTensors named_buffers() const override { return inner_.named_buffers(); }
  void set_training(bool on) override { inner_.train(on); }
  bool training() const override { return inner_.training(); }
  void to(c10::Device device) override { inner_.to(device); }
  std::shared_ptr<torch::nn::Module> module() const override { return inner_.module_or_null(); }
  ModuleTypes module_types() const override { return inner_.module_types(); }

 private:
  Model inner_;
  Policy policy_;
};

/// Which tensors of `model` are cast: floating-point ones, without those of norms if these stay.
NamedTensors chosen(const Model& model, const NamedTensors& tensors, const Policy& policy) {
  const auto types = module_types(model);
  TORCH_CHECK_VALUE(!policy.norms_fp32 || !types.empty(), "amp::apply: policy ", policy.name,
                    " keeps norms in fp32, but model \"", model.name(),
                    "\" does not know its modules: nobody can tell which parameters are norms'. Use O0, O1 or O3.");
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    const auto type = types.find(owner_of(name));
    const bool norm = type != types.end() && type->second.find("Norm") != std::string::npos;
    if (tensor.is_floating_point() && !(norm && policy.norms_fp32)) result.emplace_back(name, tensor);
  }
  return result;
}

void cast_in_place(const NamedTensors& tensors, c10::ScalarType dtype) {
  for (auto [name, tensor] : tensors) {
    tensor.mutable_grad().reset();
    if (tensor.scalar_type() != dtype) tensor.set_data(tensor.detach().to(dtype));
  }
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
  const std::string norms = policy.norms_fp32 ? "; of norms fp32" : "";
  std::string forward = "all operators in " + weights;
  if (policy.autocast) {
    forward = "autocast: products and convolutions in " + dtype + "; losses and what overflows in fp32" +
              (policy.low_weights ? "" : "; weights are cast once a step");
  }
  return policy.name + " " + dtype + line("weights", weights + norms) + line("forward", forward) +
         line("boundary", policy.low_weights ? "input is cast to " + dtype + ", output to fp32"
                          : policy.autocast  ? "output is cast to fp32"
                                             : "no casts") +
         line("gradients", weights + norms) +
         line("optimizer", policy.master_weights
                               ? "works on fp32 master weights, rounded to " + dtype + " after each step"
                               : "works on the " + weights + " weights") +
         line("loss", policy.loss_scaling ? "scaled by a GradScaler, small gradients would become zero" : "not scaled");
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

}  // namespace bellows::amp
