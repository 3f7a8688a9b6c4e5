// LAMB, NovoGrad, LARC and Muon: optimizers whose updates depend on norms of parameters, or on whole matrices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/optim/lamb.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/novograd.h"
#include "bellows/optim/state/state.h"
#include "bellows/optim/step_in_backward.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using testing::HasSubstr;
using LayerTensors = std::vector<at::Tensor>;
using LayerShapes = std::vector<std::vector<int64_t>>;
using LayerJson = nlohmann::json;
using LayerOptimizer = std::unique_ptr<LibtorchOptimizer>;

const LayerShapes layer_shapes = {{}, {17}, {5, 3}, {2, 3, 2, 2}};
const LayerShapes muon_shapes = {{5, 3}, {3, 7}, {4, 4}, {}, {17}, {5, 3}, {2, 3, 2, 2}};

const LayerJson& layer_golden() {
  static const LayerJson golden =
      LayerJson::parse(std::ifstream(BELLOWS_SOURCE_DIR "/tests/goldens/optim/layerwise.json"));
  return golden;
}

/// The formula of tools/goldens/layerwise.py.
at::Tensor layer_values(size_t index, const std::vector<int64_t>& shape, int step) {
  const at::Tensor i = torch::arange(c10::multiply_integers(shape), at::kDouble);
  const double size = 1 + 0.5 * std::cos(0.9 * step);
  return (torch::sin(0.7 * i + (1.3 * static_cast<double>(index) + 2.1 * step)) * size).view(shape);
}

/// The last parameter is channels-last, so that a fused step has to change the layout of its gradient.
LayerTensors layer_parameters(const LayerShapes& shapes, at::ScalarType type) {
  LayerTensors result;
  for (size_t i = 0; i < shapes.size(); ++i) result.push_back(layer_values(i, shapes[i], 0).to(type));
  result.back() = result.back().contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& p : result) p.requires_grad_(true);
  return result;
}

void layer_steps(torch::optim::Optimizer& optimizer, const LayerTensors& parameters, int first, int last) {
  for (int step = first; step <= last; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = layer_values(i, parameters[i].sizes().vec(), step).to(parameters[i].scalar_type());
    optimizer.step();
  }
}

at::Tensor layer_flat(const LayerTensors& parameters) {
  LayerTensors flat;
  for (const at::Tensor& p : parameters) flat.push_back(p.detach().contiguous().to(at::kDouble).flatten());
  return torch::cat(flat);
}

template <class Options>
void set_layer_options(Options& o, const LayerJson& json, Impl impl, at::ScalarType type) {
  o.lr = json.at("lr");
  o.weight_decay = json.value("weight_decay", o.weight_decay);
  o.impl = impl;
  o.master_weights = type == at::kBFloat16;
  if constexpr (requires { o.beta1; }) {
    if (json.contains("betas")) o.beta1 = json.at("betas").at(0), o.beta2 = json.at("betas").at(1);
  }
  if constexpr (requires { o.eps; }) o.eps = json.value("eps", o.eps);
  if constexpr (requires { o.bias_correction; }) {
    o.bias_correction = json.value("bias_correction", o.bias_correction);
    o.grad_averaging = json.value("grad_averaging", o.grad_averaging);
  }
  if constexpr (requires { o.momentum; }) {
    o.momentum = json.value("momentum", o.momentum);
    o.nesterov = json.value("nesterov", o.nesterov);
  }
}

LayerOptimizer layer_optimizer(const LayerJson& entry, const LayerTensors& p, Impl impl) {
  const LayerJson& json = entry.at("options");
  const at::ScalarType type = p[0].scalar_type();
  if (entry.at("class") == "Lamb") {
    LambOptions o;
    set_layer_options(o, json, impl, type);
    o.max_grad_norm = json.value("max_grad_norm", o.max_grad_norm);
    o.decoupled_weight_decay = json.value("decoupled_weight_decay", o.decoupled_weight_decay);
    o.always_adapt = json.value("always_adapt", o.always_adapt);
    return std::make_unique<Lamb>(p, o);
  }
  if (entry.at("class") == "NovoGrad") {
    NovoGradOptions o;
    set_layer_options(o, json, impl, type);
    o.init_zero = json.value("init_zero", o.init_zero);
    o.reg_inside_moment = json.value("reg_inside_moment", o.reg_inside_moment);
    o.max_norm = json.value("max_norm", o.max_norm);
    return std::make_unique<NovoGrad>(p, o);
  }
  const LayerJson& larc = json.at("larc");
  LayerOptimizer result;
  if (json.at("base") == "SGD") {
    SGDOptions o;
    set_layer_options(o, json, impl, type);
    result = std::make_unique<SGD>(p, o);
  } else {
    AdamWOptions o;
    set_layer_options(o, json, impl, type);
    result = std::make_unique<AdamW>(p, o);
  }
  const LarcOptions defaults;
  result->set_larc(LarcOptions{.trust_coefficient = larc.value("trust_coefficient", defaults.trust_coefficient),
                               .clip = larc.value("clip", defaults.clip),
                               .eps = larc.value("eps", defaults.eps)});
  return result;
}

/// Params: ns_dtype – of the Newton–Schulz iteration
LayerOptimizer muon_optimizer(const LayerJson& json, const LayerTensors& p, Impl impl, at::ScalarType ns_dtype) {
  MuonOptions o;
  set_layer_options(o, json, impl, p[0].scalar_type());
  o.ns_dtype = ns_dtype;
  o.ns_steps = json.value("ns_steps", o.ns_steps);
  if (json.contains("ns_coefficients")) {
    const LayerJson& abc = json.at("ns_coefficients");
    o.ns_a = abc.at(0), o.ns_b = abc.at(1), o.ns_c = abc.at(2);
  }
  if (json.value("adjust_lr_fn", "original") == "match_rms_adamw") o.adjust_lr_fn = MuonRate::match_rms_adamw;
  o.adamw_lr_factor = json.value("adamw_lr_factor", o.adamw_lr_factor);
  if (json.contains("adamw_betas"))
    o.adamw_beta1 = json.at("adamw_betas").at(0), o.adamw_beta2 = json.at("adamw_betas").at(1);
  return std::make_unique<Muon>(p, o);
}

void expect_trajectory(torch::optim::Optimizer& optimizer, const LayerTensors& p, const LayerJson& expected,
                       double limit) {
  for (const int last : {1, 50}) {
    layer_steps(optimizer, p, last == 1 ? 1 : 2, last);
    const auto values = expected.at(std::to_string(last)).get<std::vector<double>>();
    EXPECT_LE((layer_flat(p) - torch::tensor(values, at::kDouble)).abs().max().item<double>(), limit)
        << "step " << last;
  }
}

constexpr Impl all_impls[] = {Impl::loop, Impl::foreach, Impl::fused};

/// All optimizers of this file, with a short name.
std::vector<std::pair<std::string, std::function<LayerOptimizer(const LayerTensors&)>>> layer_optimizers() {
  std::vector<std::pair<std::string, std::function<LayerOptimizer(const LayerTensors&)>>> result;
  for (const char* name : {"lamb", "novograd_zero", "larc_sgd"}) {
    result.emplace_back(name, [entry = layer_golden().at("cases").at(name)](const LayerTensors& p) {
      return layer_optimizer(entry, p, Impl::automatic);
    });
  }
  result.emplace_back("muon", [](const LayerTensors& p) {
    return muon_optimizer(layer_golden().at("muon").at("muon_all").at("options"), p, Impl::automatic, at::kFloat);
  });
  return result;
}

}  // namespace

// bf16: gradients and weights are rounded to 8 bits, state and master weights are in fp32.
TEST(Layerwise, FollowsTheOriginals) {
  for (const auto& [name, entry] : layer_golden().at("cases").items()) {
    for (const Impl impl : all_impls) {
      for (const auto& [type, limit] :
           {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 3e-2}}) {
        SCOPED_TRACE(testing::Message() << name << ", impl " << static_cast<int>(impl) << ", " << type);
        const LayerTensors p = layer_parameters(layer_shapes, type);
        expect_trajectory(*layer_optimizer(entry, p, impl), p, entry.at("float64"), limit);
      }
    }
  }
}

TEST(Muon, FollowsPython) {
  for (const auto& [name, entry] : layer_golden().at("muon").items()) {
    for (const Impl impl : all_impls) {
      SCOPED_TRACE(testing::Message() << name << ", impl " << static_cast<int>(impl));
      const auto expect = [&](const char* golden, at::ScalarType type, at::ScalarType ns_dtype, double limit) {
        SCOPED_TRACE(testing::Message() << type << ", iteration in " << ns_dtype);
        const LayerTensors p = layer_parameters(muon_shapes, type);
        expect_trajectory(*muon_optimizer(entry.at("options"), p, impl, ns_dtype), p, entry.at(golden), limit);
      };
      expect("float64", at::kDouble, at::kDouble, 1e-12);
      expect("float64", at::kFloat, at::kFloat, 1e-3);
      expect("bfloat16", at::kDouble, at::kBFloat16, 2e-2);
    }
  }
}

TEST(Muon, MakesMatricesOrthogonal) {
  const at::Tensor tall = layer_values(0, {40, 12}, 1) + torch::eye(40, 12, at::kDouble);
  const at::Tensor result = newton_schulz(tall, MuonGroupOptions(), at::kDouble);
  const at::Tensor singular = std::get<1>(torch::svd(result));
  EXPECT_LE(singular.max().item<double>(), 1.3);
  EXPECT_TRUE(torch::allclose(newton_schulz(tall.t(), MuonGroupOptions(), at::kDouble).t(), result, 1e-9, 1e-12));
  EXPECT_THAT(message_of([&] { newton_schulz(tall[0], MuonGroupOptions(), at::kDouble); }),
              HasSubstr("expected a matrix, got a tensor of shape [12]"));
}

TEST(Muon, DividesParametersByName) {
  const Model model = Model::of(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)));
  const auto groups = muon_groups(model, {"1.*"}, {.lr = 0.5, .adamw_lr_factor = 0.1});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params().size(), 1u);  // 0.weight
  EXPECT_EQ(groups[1].params().size(), 3u);
  const LayerTensors before = {groups[0].params()[0].detach().clone(), groups[1].params()[1].detach().clone()};
  Muon muon(groups, {.lr = 0.5});
  for (const at::Tensor& p : model.parameters()) p.mutable_grad() = torch::ones_like(p);
  muon.step();
  // The first step of AdamW changes each element by its learning rate, besides the weight decay.
  EXPECT_TRUE(torch::allclose(groups[1].params()[1], before[1] * (1 - 0.05 * 0.1) - 0.05, 0, 1e-6));
  EXPECT_FALSE(torch::allclose(groups[0].params()[0], before[0] * (1 - 0.5 * 0.1) - 0.5, 0, 1e-2));
}

TEST(Layerwise, GoesOnWithTheSameBits) {
  for (const auto& [name, make] : layer_optimizers()) {
    SCOPED_TRACE(name);
    const LayerTensors straight = layer_parameters(muon_shapes, at::kFloat);
    const LayerOptimizer reference = make(straight);
    layer_steps(*reference, straight, 1, 6);
    for (const bool archive : {false, true}) {
      const LayerTensors broken = layer_parameters(muon_shapes, at::kFloat);
      const LayerOptimizer first = make(broken), second = make(broken);
      layer_steps(*first, broken, 1, 3);
      set_lr(*second, 123);  // the state has the right one
      if (archive) {
        std::stringstream file;
        torch::save(*first, file);
        torch::load(*second, file);
      } else {
        load_state_dict(*second, state_dict(*first));
      }
      layer_steps(*second, broken, 4, 6);
      EXPECT_TRUE(torch::equal(layer_flat(straight), layer_flat(broken))) << archive;
    }
  }
}

TEST(Layerwise, DividesByTheScaleAndClimbs) {
  const LayerTensors plain = layer_parameters(layer_shapes, at::kFloat),
                     other = layer_parameters(layer_shapes, at::kFloat);
  Lamb down(plain, {.lr = 0.5}), up(other, {.maximize = true});
  EXPECT_TRUE(up.takes_grad_scale());
  up.set_lr_tensor(torch::tensor(0.5));
  layer_steps(down, plain, 1, 1);
  for (size_t i = 0; i < plain.size(); ++i) other[i].mutable_grad() = plain[i].grad() * -256;
  up.set_grad_scale(torch::tensor(256.0f), torch::tensor(0.0f));
  up.step();
  EXPECT_TRUE(torch::allclose(layer_flat(plain), layer_flat(other), 0, 1e-7));
}

TEST(Layerwise, GroupsHaveTheirOwnOptions) {
  const LayerTensors apart = layer_parameters(layer_shapes, at::kDouble),
                     together = layer_parameters(layer_shapes, at::kDouble);
  const LambOptions options{.lr = 0.01, .max_grad_norm = 0};
  LambOptions other = options;
  other.lr = 0.05;
  Lamb first({apart[0], apart[1]}, options), second({apart[2], apart[3]}, other);
  std::vector<PatternGroup> groups(2);
  groups[0].params = {together[0], together[1]};
  groups[1].params = {together[2], together[3]};
  groups[1].options.lr = 0.05;
  Lamb both(groups, options);
  layer_steps(both, together, 1, 3);
  for (int step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < apart.size(); ++i) apart[i].mutable_grad() = layer_values(i, layer_shapes[i], step);
    first.step(), second.step();
  }
  EXPECT_TRUE(torch::equal(layer_flat(apart), layer_flat(together)));
}

TEST(Layerwise, RefusesWhatMakesNoSense) {
  const LayerTensors p = layer_parameters(layer_shapes, at::kFloat);
  EXPECT_THAT(message_of([&] { Lamb(p, {.beta1 = 1}); }), HasSubstr("Lamb: expected beta1 in [0, 1), got 1."));
  EXPECT_THAT(message_of([&] { Lamb(p, {.max_grad_norm = -1}); }), HasSubstr("max_grad_norm"));
  EXPECT_THAT(message_of([&] { NovoGrad(p, {.eps = -1}); }), HasSubstr("NovoGrad: expected eps"));
  EXPECT_THAT(message_of([&] { Muon(p, {.ns_steps = 100}); }), HasSubstr("Muon: expected ns_steps in [0, 100)"));
  EXPECT_THAT(message_of([&] { Muon(p, {.ns_dtype = at::kLong}); }), HasSubstr("ns_dtype"));
  Lamb lamb(p, {});
  EXPECT_THAT(message_of([&] { lamb.set_larc(LarcOptions{}); }), HasSubstr("Lamb normalizes gradients itself"));
  EXPECT_THAT(message_of([&] { step_in_backward(lamb); }), HasSubstr("Set max_grad_norm to 0"));
  SGD sgd(p, {});
  EXPECT_THAT(message_of([&] { sgd.set_larc(LarcOptions{.trust_coefficient = 0}); }), HasSubstr("trust_coefficient"));
  EXPECT_TRUE(sgd.takes_grad_scale());
  sgd.set_larc(LarcOptions{});
  EXPECT_FALSE(sgd.takes_grad_scale());
  EXPECT_TRUE(sgd.needs_whole_parameters());
}

}  // namespace bellows::optim
