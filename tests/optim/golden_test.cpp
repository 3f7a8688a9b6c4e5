// Against Python: 50-step trajectories of every optimizer and implementation, and optimizer states both ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/python_state.h"
#include "bellows/optim/state/state.h"
#include "tests/optim/support.h"

namespace bellows::optim {

namespace {

using GoldenJson = nlohmann::json;
using GoldenTensors = std::vector<at::Tensor>;

std::string golden_path(const std::string& name) {
  return std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/optim/" + name;
}

GoldenJson read_golden(const std::string& name) {
  std::ifstream file(golden_path(name));
  return GoldenJson::parse(file);
}

const std::vector<std::vector<int64_t>> golden_shapes = {{}, {17}, {5, 3}, {2, 3, 2, 2}};

/// The formula of tools/goldens/optim.py.
at::Tensor golden_values(size_t index, const std::vector<int64_t>& shape, int step) {
  const at::Tensor result = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < result.numel(); ++i) {
    const double angle = 0.7 * static_cast<double>(i) + 1.3 * static_cast<double>(index) + 2.1 * step;
    result.mutable_data_ptr<double>()[i] = std::sin(angle) * (1 + 0.5 * std::cos(0.9 * step));
  }
  return result;
}

GoldenTensors golden_parameters(at::ScalarType type) {
  GoldenTensors result;
  for (size_t i = 0; i < golden_shapes.size(); ++i)
    result.push_back(golden_values(i, golden_shapes[i], 0).to(type).set_requires_grad(true));
  // The last one channels-last: the fused step has to bring gradient and state in its order.
  result.back() = result.back().detach().contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
  return result;
}

void set_golden_gradients(GoldenTensors& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = golden_values(i, golden_shapes[i], step).to(parameters[i].scalar_type());
}

at::Tensor all_values(const GoldenTensors& parameters) {
  GoldenTensors flat;
  for (const at::Tensor& p : parameters) flat.push_back(p.detach().contiguous().to(at::kDouble).flatten());
  return at::cat(flat);
}

at::Tensor as_tensor(const GoldenJson& values) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble);
}

const char* impl_name(Impl impl) {
  return impl == Impl::loop ? "loop" : impl == Impl::foreach ? "foreach" : impl == Impl::fused ? "fused" : "automatic";
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  const GoldenJson golden = read_golden("trajectories.json");
  for (const auto& entry : golden.at("cases").items()) names.push_back(entry.key());
  return names;
}

}  // namespace

class GoldenTrajectory : public testing::TestWithParam<std::tuple<std::string, Impl>> {
 protected:
  void SetUp() override {
    static const GoldenJson all = read_golden("trajectories.json");
    golden_ = all.at("cases").at(std::get<0>(GetParam()));
  }
  /// Fifty steps; `check(step, values)` sees the steps that the golden knows.
  void run(GoldenTensors parameters, const GoldenJson& expected, bool master_weights,
           const std::function<void(const at::Tensor& ours, const at::Tensor& python)>& check) {
    const auto optimizer =
        make_optimizer(golden_.at("class"), golden_.at("options"), parameters, std::get<1>(GetParam()), master_weights);
    int compared = 0;
    for (int step = 1; step <= 50; ++step) {
      set_golden_gradients(parameters, step);
      optimizer->step();
      const std::string key = std::to_string(step);
      if (!expected.contains(key)) continue;
      SCOPED_TRACE("step " + key);
      check(all_values(parameters), as_tensor(expected.at(key)));
      ++compared;
    }
    EXPECT_EQ(compared, 2);
  }
  GoldenJson golden_;
};

TEST_P(GoldenTrajectory, InFloat64ToTwelveDigits) {
  run(golden_parameters(at::kDouble), golden_.at("float64"), false,
      [](const at::Tensor& ours, const at::Tensor& python) {
        EXPECT_LE((ours - python).abs().max().item<double>(), 1e-12);
      });
}

// fp32 against Python's float64. An Adam step is lr · m / √v: where m is small by cancellation its rounding error is large
// relative to it, so that the bound is absolute: 50 steps of 1e-2 to 5e-2 with a relative error of some 1e-6 each. A
// Lion step turns round with the sign of m: none of the goldens' averages is within rounding of zero.
TEST_P(GoldenTrajectory, InFloat32) {
  run(golden_parameters(at::kFloat), golden_.at("float64"), false,
      [](const at::Tensor& ours, const at::Tensor& python) {
        EXPECT_LE((ours - python).abs().max().item<double>(), 2e-5);
      });
}

// bf16 weights with fp32 master and state: the gradients are rounded to 8 bits, the rest is fp32. Each parameter is within
// half a unit of bf16 of what fp32 gives for those gradients, which is within the gradients' error of Python's float64.
TEST_P(GoldenTrajectory, InBfloat16WithMasterWeights) {
  if (std::get<0>(GetParam()).starts_with("lion")) {
    GoldenTensors parameters = golden_parameters(at::kBFloat16);
    const auto optimizer =
        make_optimizer("Lion", golden_.at("options"), parameters, std::get<1>(GetParam()), /*master_weights=*/true);
    set_golden_gradients(parameters, 1);
    optimizer->step();  // rounding decides about signs later on
    EXPECT_LE((all_values(parameters) - as_tensor(golden_.at("float64").at("1"))).abs().max().item<double>(), 8e-3);
    return;
  }
  run(golden_parameters(at::kBFloat16), golden_.at("float64"), true,
      [](const at::Tensor& ours, const at::Tensor& python) {
        EXPECT_TRUE(at::allclose(ours, python, 1e-2, 3e-2)) << (ours - python).abs().max();
      });
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTrajectory,
                         testing::Combine(testing::ValuesIn(golden_names()),
                                          testing::Values(Impl::loop, Impl::foreach, Impl::fused)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + impl_name(std::get<1>(test.param));
                         });

// Everything stored in bf16, each step computed in fp32 from what is stored. One unit of bf16 where values fall on either
// side of a rounding boundary; that feeds back over 50 steps.
TEST(GoldenBfloat16, FusedRoundsOnceAStep) {
  const GoldenJson golden = read_golden("trajectories.json");
  for (const auto& [name, entry] : golden.at("cases").items()) {
    SCOPED_TRACE(name);
    GoldenTensors parameters = golden_parameters(at::kBFloat16);
    const auto optimizer = make_optimizer(entry.at("class"), entry.at("options"), parameters, Impl::fused, false);
    for (int step = 1; step <= 50; ++step) {
      set_golden_gradients(parameters, step);
      optimizer->step();
      if (step != 1 && step != 50) continue;
      const at::Tensor python = as_tensor(entry.at("bfloat16").at(std::to_string(step)));
      const double limit = step == 1 ? 4e-3 : 1.6e-2;
      EXPECT_TRUE(at::allclose(all_values(parameters), python, limit, limit))
          << "step " << step << ": " << (all_values(parameters) - python).abs().max().item<double>();
    }
  }
}

// --- states

class GoldenState : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = read_golden("states.json").at(GetParam());
    file_ = io::torch_load(golden_path(GetParam() + ".pt"));
    for (const auto& p : file_.at("parameters").elements())
      parameters_.push_back(p.as_tensor().clone().set_requires_grad(true));
  }
  std::unique_ptr<LibtorchOptimizer> optimizer(Impl impl) {
    std::vector<PatternGroup> groups(2);
    groups[0].params = {parameters_[0]};
    groups[1].params = {parameters_.begin() + 1, parameters_.end()};
    return make_optimizer(golden_.at("class"), golden_.at("options"), groups, impl, false);
  }
  GoldenJson golden_;
  io::PickleValue file_;
  GoldenTensors parameters_;
};

TEST_P(GoldenState, GoesOnWherePythonStopped) {
  for (const Impl impl : {Impl::loop, Impl::foreach, Impl::fused}) {
    SCOPED_TRACE(impl_name(impl));
    SetUp();
    parameters_.erase(parameters_.begin(), parameters_.end() - 4);
    const auto ours = optimizer(impl);
    load_python_state_dict(*ours, file_.at("optimizer"));
    EXPECT_NEAR(ours->param_groups()[0].options().get_lr(), 0.02, 1e-9);
    for (int step = 4; step < 6; ++step) {
      set_golden_gradients(parameters_, step);
      ours->step();
    }
    EXPECT_LE((all_values(parameters_) - as_tensor(golden_.at("after"))).abs().max().item<double>(), 1e-6);
  }
}

/// That Python's state comes out as it went in, entry by entry, in a file.
TEST_P(GoldenState, WritesWhatPythonWrote) {
  const auto ours = optimizer(Impl::fused);
  load_python_state_dict(*ours, file_.at("optimizer"));
  const std::string path = testing::TempDir() + c10::str("/state_of_", GetParam(), "_", getpid(), ".pt");
  io::torch_save(path, python_state_dict(*ours));
  const io::PickleValue written = io::torch_load(path), &python = file_.at("optimizer");
  std::filesystem::remove(path);  // what is loaded stays mapped
  ASSERT_EQ(written.at("param_groups").size(), 2u);
  for (size_t g = 0; g < 2; ++g) {
    const auto& group = written.at("param_groups").at_index(g);
    for (const auto& [key, value] : python.at("param_groups").at_index(g).items()) {
      ASSERT_TRUE(group.contains(key)) << key.describe();
      if (value.kind() == io::PickleValue::Kind::real) {
        EXPECT_EQ(group.at(key).as_double(), value.as_double()) << key.describe();
      }
      EXPECT_EQ(group.at(key).is_sequence(), value.is_sequence()) << key.describe();
    }
    EXPECT_EQ(group.at("params").at_index(0).as_int(), static_cast<int64_t>(g));
  }
  for (const auto& [index, state] : python.at("state").items()) {
    for (const auto& [key, value] : state.items()) {
      if (value.is_none()) continue;
      const at::Tensor& tensor = written.at("state").at(index).at(key).as_tensor();
      EXPECT_TRUE(at::equal(tensor, value.as_tensor()) && tensor.scalar_type() == value.as_tensor().scalar_type())
          << index.describe() << " " << key.describe();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenState,
                         testing::Values("sgd_momentum", "sgd", "adam_decay", "adamw", "rmsprop_all", "adagrad_decay",
                                         "lion_decay"),
                         [](const auto& test) { return test.param; });

TEST(PythonState, OfAnotherOptimizerIsRefused) {
  const auto message = [](auto& optimizer, const io::PickleValue& state) -> std::string {
    try {
      load_python_state_dict(optimizer, state);
    } catch (const c10::ValueError& error) {
      return user_message(error);
    }
    return "";
  };
  GoldenTensors parameters = golden_parameters(at::kFloat);
  const auto groups = [&] {
    std::vector<PatternGroup> result(2);
    result[0].params = {parameters[0]};
    result[1].params = {parameters.begin() + 1, parameters.end()};
    return result;
  };
  const io::PickleValue adamw_state = io::torch_load(golden_path("adamw.pt")).at("optimizer");
  Adam adam(groups(), {});
  EXPECT_THAT(message(adam, adamw_state), testing::HasSubstr("the state belongs to AdamW, but the optimizer is Adam"));
  EXPECT_TRUE(adam.state().empty());
  RMSprop rmsprop(groups(), {});
  EXPECT_THAT(message(rmsprop, adamw_state), testing::HasSubstr("another optimizer"));
  AdamW climbing(groups(), {.maximize = true});
  EXPECT_THAT(message(climbing, adamw_state), testing::HasSubstr("maximize"));
  AdamW one_group(parameters, {});
  EXPECT_THAT(message(one_group, adamw_state), testing::HasSubstr("2 parameter groups, but the optimizer has 1"));
  std::swap(parameters[0], parameters[1]);
  AdamW other_shapes(groups(), {});
  EXPECT_THAT(message(other_shapes, adamw_state), testing::HasSubstr("another model"));
  EXPECT_THAT(message(other_shapes, io::PickleValue(3)), testing::HasSubstr("expected a dict"));
}

}  // namespace bellows::optim
