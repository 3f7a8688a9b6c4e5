// Recurrent networks in compiled functions: values and all gradients are as exact as those of eager libtorch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/compile/compile.h"

namespace bellows::testing {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

/// A network that computes results from a sequence of inputs. All copies have the same parameters.
struct Network {
  std::shared_ptr<nn::Module> module;
  std::function<Tensors(const at::Tensor&)> forward;
};

struct NetworkCase {
  std::string name;
  std::function<Network()> make;
  std::vector<int64_t> input;
  int shared = 0;  ///< minimum number of shared matmuls in the largest program of a training step
};

template <class Module, class Options>
std::function<Network()> layers_of(const Options& options) {
  return [=] {
    Module module(options);
    return Network{module.ptr(), [=](const at::Tensor& x) mutable {
                     const auto [output, state] = module->forward(x);
                     if constexpr (std::is_same_v<std::decay_t<decltype(state)>, at::Tensor>)
                       return Tensors{output, state};
                     else
                       return Tensors{output, std::get<0>(state), std::get<1>(state)};
                   }};
  };
}

Network lstm_cells() {
  nn::LSTMCell cell(5, 7);
  return {cell.ptr(), [=](const at::Tensor& x) mutable {
            at::Tensor h = at::zeros({x.size(1), 7}, x.options()), c = h;
            Tensors outputs;
            for (const at::Tensor& step : x.unbind(0)) {
              std::tie(h, c) = cell->forward(step, std::make_tuple(h, c));
              outputs.push_back(h);
            }
            return Tensors{at::stack(outputs), c};
          }};
}

Network gru_cells() {
  nn::GRUCell cell(5, 7);
  return {cell.ptr(), [=](const at::Tensor& x) mutable {
            at::Tensor h = at::zeros({x.size(1), 7}, x.options());
            for (const at::Tensor& step : x.unbind(0)) h = cell->forward(step, h);
            return Tensors{h};
          }};
}

/// Two layers of LSTM cells that are written by hand and alternate.
Network hand_written() {
  nn::ModuleList parts(nn::Linear(5, 28), nn::Linear(7, 28), nn::Linear(7, 28), nn::Linear(7, 28), nn::Linear(7, 1));
  return {parts.ptr(), [=](const at::Tensor& x) mutable {
            const auto linear = [&](size_t i, const at::Tensor& at) { return parts[i]->as<nn::Linear>()->forward(at); };
            const auto step = [&](size_t first, const at::Tensor& input, at::Tensor& h, at::Tensor& c) {
              const auto gates = (linear(first, input) + linear(first + 1, h)).chunk(4, 1);
              c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
              h = gates[3].sigmoid() * c.tanh();
            };
            at::Tensor h = at::zeros({x.size(1), 7}, x.options()), c = h, h2 = h, c2 = h;
            Tensors outputs;
            for (const at::Tensor& each : x.unbind(0)) {
              step(0, each, h, c);
              step(2, h, h2, c2);
              outputs.push_back(linear(4, h2));
            }
            return Tensors{at::cat(outputs, 1), c2};
          }};
}

/// Sequences of different lengths.
Network packed() {
  nn::GRU module(nn::GRUOptions(5, 7).bidirectional(true));
  return {module.ptr(), [=](const at::Tensor& x) mutable {
            const at::Tensor lengths = at::tensor({6, 4, 1}, at::kLong);
            const auto input = nn::utils::rnn::pack_padded_sequence(x, lengths);
            const auto [output, state] = module->forward_with_packed_input(input);
            return Tensors{output.data(), state};
          }};
}

const std::vector<NetworkCase> network_cases{
    {"GRU", layers_of<nn::GRU>(nn::GRUOptions(5, 7)), {6, 3, 5}, 10},
    {"GRULayers",
     layers_of<nn::GRU>(nn::GRUOptions(5, 7).num_layers(2).bidirectional(true).batch_first(true)),
     {3, 6, 5},
     20},
    {"GRUOneSample", layers_of<nn::GRU>(nn::GRUOptions(5, 33)), {6, 1, 5}, 10},
    {"LSTM", layers_of<nn::LSTM>(nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true)), {6, 3, 5}},
    {"RNN", layers_of<nn::RNN>(nn::RNNOptions(5, 7).bias(false)), {6, 3, 5}, 10},
    {"LSTMCells", lstm_cells, {6, 3, 5}, 10},
    {"GRUCells", gru_cells, {6, 2, 5}, 10},
    {"HandWritten", hand_written, {6, 3, 5}, 20},
    {"Packed", packed, {6, 3, 5}}};

class Recurrent : public ::testing::TestWithParam<std::tuple<NetworkCase, c10::ScalarType>> {
 protected:
  const NetworkCase& one() const { return std::get<0>(GetParam()); }
  c10::ScalarType type() const { return std::get<1>(GetParam()); }

  Network network(c10::ScalarType dtype) const {
    torch::manual_seed(11);
    Network made = one().make();
    made.module->to(type());  // rounds the parameters, so that all copies are equal
    made.module->to(dtype);
    return made;
  }

  /// Returns the results, and after a training step also the gradients of the input and of all parameters.
  static Tensors run(const Network& network, const at::Tensor& given, bool trains) {
    if (!trains) {
      const torch::NoGradGuard no_grad;
      return network.forward(given);
    }
    network.module->zero_grad();
    const at::Tensor x = given.detach().clone().requires_grad_();
    Tensors results = network.forward(x);
    at::Tensor loss = results[0].square().sum();
    for (size_t i = 1; i < results.size(); ++i) loss = loss + results[i].sin().sum();
    loss.backward();
    for (at::Tensor& result : results) result = result.detach();
    results.push_back(x.grad());
    for (const at::Tensor& parameter : network.module->parameters()) results.push_back(parameter.grad().clone());
    return results;
  }

  /// The rounding of a few operations, relative to the largest value.
  double rounding() const { return type() == at::kDouble ? 1e-14 : type() == at::kFloat ? 2e-6 : 1.0 / 64; }

  graph::Explanation expect_as_exact(bool trains) {
    const Network ours = network(type()), plain = network(type()), exact = network(at::kDouble);
    const auto compiled = compile([&](const at::Tensor& x) { return run(ours, x, trains); }, {.always = true});
    for (int call = 0; call < 3; ++call) {
      const at::Tensor x = torch::randn(one().input).to(type());
      const Tensors made = compiled(x), eager = run(plain, x, trains), right = run(exact, x.to(at::kDouble), trains);
      EXPECT_EQ(made.size(), right.size());
      for (size_t i = 0; i < right.size(); ++i) {
        EXPECT_EQ(made[i].dtype(), eager[i].dtype());
        EXPECT_EQ(made[i].sizes(), eager[i].sizes());
        const auto error = [&](const at::Tensor& given) {
          return (given.to(at::kDouble) - right[i]).abs().max().item<double>();
        };
        const double largest = right[i].abs().max().item<double>();
        EXPECT_LE(error(made[i]), 2 * error(eager[i]) + rounding() * largest) << "tensor " << i << ", call " << call;
      }
    }
    return compiled.explain();
  }
};

int64_t times(const std::string& text, const std::string& pass) {
  int64_t last = 0;
  for (size_t at = text.find("  " + pass + " "); at != std::string::npos; at = text.find("  " + pass + " ", at + 1))
    last = std::max<int64_t>(last, std::atoll(text.c_str() + at + 2 + pass.size()));
  return last;
}

TEST_P(Recurrent, TrainingIsAsExactAsLibtorch) {
  const std::string text = expect_as_exact(true).to_text();
  EXPECT_GE(times(text, "shared matmuls"), one().shared) << text;
}

TEST_P(Recurrent, InferenceIsAsExactAsLibtorch) {
  expect_as_exact(false);
}

INSTANTIATE_TEST_SUITE_P(Networks, Recurrent,
                         ::testing::Combine(::testing::ValuesIn(network_cases),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kDouble)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + c10::toString(std::get<1>(test.param));
                         });

TEST(RecurrentDropout, DrawsTheMasksOfLibtorch) {
  const auto run = [](bool compiles) {
    torch::manual_seed(11);
    nn::GRU module(nn::GRUOptions(5, 7).num_layers(2).dropout(0.5));
    const at::Tensor x = torch::randn({6, 3, 5});
    const auto step = [&] {
      module->zero_grad();
      const at::Tensor loss = std::get<0>(module->forward(x)).square().sum();
      loss.backward();
      return loss.detach();
    };
    const auto compiled = compile(step, {.always = true});
    Tensors results;
    for (int call = 0; call < 3; ++call) results.push_back(compiles ? compiled() : step());
    for (const at::Tensor& parameter : module->parameters()) results.push_back(parameter.grad());
    return results;
  };
  const Tensors ours = run(true), plain = run(false);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE((ours[i] - plain[i]).abs().max().item<double>(), 2e-5 * (1 + plain[i].abs().max().item<double>())) << i;
  }
}

TEST(RecurrentExact, KeepsTheBitsOfLibtorch) {
  torch::manual_seed(11);
  nn::GRU module(nn::GRUOptions(5, 7));
  const at::Tensor x = torch::randn({6, 3, 5});
  const auto step = [&] {
    module->zero_grad();
    std::get<0>(module->forward(x)).square().sum().backward();
    return module->parameters()[1].grad().clone();
  };
  const at::Tensor plain = step();
  const auto compiled = compile(step, {.exact = true});
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(at::equal(compiled(), plain)) << call;
}

}  // namespace
}  // namespace bellows::testing
