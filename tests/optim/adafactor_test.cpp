#include "bellows/optim/adafactor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/io/tensors/torch_file.h"
#include "bellows/optim/state/python_state.h"
#include "bellows/optim/state/state.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using testing::HasSubstr;
using FactorTensors = std::vector<at::Tensor>;
using FactorJson = nlohmann::json;

const std::vector<std::vector<int64_t>> factor_shapes = {{}, {17}, {5, 3}, {2, 3, 2, 2}};

FactorJson factor_golden() {
  std::ifstream file(BELLOWS_SOURCE_DIR "/tests/goldens/optim/adafactor.json");
  return FactorJson::parse(file);
}

/// The formula of tools/goldens/adafactor.py.
at::Tensor factor_values(size_t index, int step) {
  const at::Tensor shape = torch::empty(factor_shapes[index], at::kDouble);
  const at::Tensor i = torch::arange(shape.numel(), at::kDouble);
  const double size = 1 + 0.5 * std::cos(0.9 * step);
  return (torch::sin(0.7 * i + (1.3 * static_cast<double>(index) + 2.1 * step)) * size).view(factor_shapes[index]);
}

FactorTensors factor_parameters(at::ScalarType type) {
  FactorTensors result;
  for (size_t i = 0; i < factor_shapes.size(); ++i) result.push_back(factor_values(i, 0).to(type));
  result.back() = result.back().contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& p : result) p.requires_grad_(true);
  return result;
}

void factor_steps(torch::optim::Optimizer& optimizer, const FactorTensors& parameters, int first, int last) {
  for (int step = first; step <= last; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = factor_values(i, step).to(parameters[i].scalar_type());
    optimizer.step();
  }
}

at::Tensor factor_flat(const FactorTensors& parameters) {
  FactorTensors flat;
  for (const at::Tensor& p : parameters) flat.push_back(p.detach().contiguous().to(at::kDouble).flatten());
  return torch::cat(flat);
}

at::Tensor factor_expected(const FactorJson& values) {
  return torch::tensor(values.get<std::vector<double>>(), at::kDouble);
}

AdafactorOptions factor_options(const FactorJson& json, Impl impl) {
  AdafactorOptions o;
  if (json.contains("lr")) o.lr = json.at("lr").get<double>();
  if (json.contains("eps")) o.eps1 = json.at("eps").at(0), o.eps2 = json.at("eps").at(1);
  o.clip_threshold = json.value("clip_threshold", o.clip_threshold);
  o.decay_rate = json.value("decay_rate", o.decay_rate);
  o.beta1 = json.value("beta1", o.beta1);
  o.weight_decay = json.value("weight_decay", o.weight_decay);
  o.scale_parameter = json.value("scale_parameter", o.scale_parameter);
  o.relative_step = json.value("relative_step", o.relative_step);
  o.warmup_init = json.value("warmup_init", o.warmup_init);
  o.impl = impl;
  return o;
}

}  // namespace

TEST(Adafactor, FollowsPython) {
  const FactorJson golden = factor_golden();
  for (const auto& [name, entry] : golden.at("cases").items()) {
    for (const Impl impl : {Impl::loop, Impl::foreach, Impl::fused}) {
      for (const auto& [type, limit] :
           {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 3e-2}}) {
        SCOPED_TRACE(testing::Message() << name << ", impl " << static_cast<int>(impl) << ", " << type);
        const FactorTensors p = factor_parameters(type);
        AdafactorOptions options = factor_options(entry.at("options"), impl);
        options.master_weights = type == at::kBFloat16;
        Adafactor optimizer(p, options);
        for (const int last : {1, 50}) {
          factor_steps(optimizer, p, last == 1 ? 1 : 2, last);
          const at::Tensor error = factor_flat(p) - factor_expected(entry.at("float64").at(std::to_string(last)));
          EXPECT_LE(error.abs().max().item<double>(), limit) << "step " << last;
        }
      }
    }
  }
}

TEST(Adafactor, GoesOnWithTheSameBits) {
  const AdafactorOptions options = factor_options(factor_golden().at("cases").at("all").at("options"), Impl::automatic);
  const FactorTensors straight = factor_parameters(at::kFloat);
  Adafactor reference(straight, options);
  factor_steps(reference, straight, 1, 6);
  for (const bool archive : {false, true}) {
    const FactorTensors broken = factor_parameters(at::kFloat);
    Adafactor first(broken, options), second(broken, {});
    factor_steps(first, broken, 1, 3);
    if (archive) {
      std::stringstream file;
      torch::save(first, file);
      torch::load(second, file);
    } else {
      load_state_dict(second, state_dict(first));
    }
    factor_steps(second, broken, 4, 6);
    EXPECT_TRUE(torch::equal(factor_flat(straight), factor_flat(broken))) << archive;
  }
}

TEST(Adafactor, ReadsAndWritesTransformersState) {
  const FactorJson golden = factor_golden();
  const io::PickleValue file = io::torch_load(BELLOWS_SOURCE_DIR "/tests/goldens/optim/adafactor.pt");
  FactorTensors p;
  for (const io::PickleValue& value : file.at("parameters").elements())
    p.push_back(value.as_tensor().clone().requires_grad_(true));
  Adafactor first(p, {}), second(p, {});
  load_python_state_dict(first, file.at("optimizer"));
  load_python_state_dict(second, python_state_dict(first));
  factor_steps(second, p, 4, 5);
  EXPECT_LE((factor_flat(p) - factor_expected(golden.at("after"))).abs().max().item<double>(), 1e-6);
  const io::PickleValue written = python_state_dict(first);
  EXPECT_TRUE(written.at("param_groups").at_index(0).at("eps").is_sequence());
  EXPECT_TRUE(torch::equal(written.at("state").at(2).at("exp_avg_sq_row").as_tensor(),
                           file.at("optimizer").at("state").at(2).at("exp_avg_sq_row").as_tensor()));
  Adafactor plain(p, {});
  EXPECT_TRUE(python_state_dict(plain).at("param_groups").at_index(0).at("beta1").is_none());
}

TEST(Adafactor, KeepsTwoVectorsAMatrix) {
  const FactorTensors p = {torch::ones({300, 200}).requires_grad_(true)};
  Adafactor optimizer(p, {});
  p[0].mutable_grad() = torch::ones({300, 200});
  optimizer.step();
  int64_t numbers = 0;
  for (const auto& [name, tensor] : state_dict(optimizer)) {
    if (name.starts_with("state.")) numbers += tensor.numel();
  }
  EXPECT_EQ(numbers, 300 + 200 + 1);
}

TEST(Adafactor, DividesByTheScaleClimbsAndFollowsARate) {
  const FactorTensors plain = factor_parameters(at::kFloat), other = factor_parameters(at::kFloat);
  Adafactor down(plain, {}), up(other, {.maximize = true});
  EXPECT_TRUE(up.takes_grad_scale());
  set_lr(down, 0.5);
  up.set_lr_tensor(torch::tensor(0.5));
  for (size_t i = 0; i < plain.size(); ++i) {
    plain[i].mutable_grad() = factor_values(i, 1).to(at::kFloat);
    other[i].mutable_grad() = plain[i].grad() * -256;
  }
  up.set_grad_scale(torch::tensor(256.0f), torch::tensor(0.0f));
  up.step();
  down.step();
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], other[i])) << i;
}

TEST(Adafactor, RefusesWhatMakesNoSense) {
  const FactorTensors p = factor_parameters(at::kFloat);
  const auto error = [&](const AdafactorOptions& options) { return message_of([&] { Adafactor(p, options); }); };
  EXPECT_THAT(error({.relative_step = false}), HasSubstr("expected lr"));
  EXPECT_THAT(error({.lr = 0.1, .relative_step = false, .warmup_init = true}), HasSubstr("warmup_init"));
  EXPECT_THAT(error({.clip_threshold = 0}), HasSubstr("clip_threshold"));
  EXPECT_THAT(error({.decay_rate = 0.8}), HasSubstr("decay_rate"));
  Adafactor optimizer(p, {});
  factor_steps(optimizer, p, 1, 1);
  Adafactor other({torch::ones({3, 5}).requires_grad_(true)}, {});
  EXPECT_THAT(message_of([&] { load_state_dict(other, state_dict(optimizer)); }),
              HasSubstr("belongs to another model"));
}

}  // namespace bellows::optim
