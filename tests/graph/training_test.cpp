#include "tests/graph/training.h"
#include "bellows/recompute/activation_checkpoint.h"

namespace bellows::graph::testing {
namespace {

TEST(TrainingStep, MlpWithDropoutAndAdamW) {
  expect_trained_alike([] {
    auto net = mlp();
    return training<AdamW>(net.ptr(), classify(net, torch::randn({8, 16})), AdamWOptions(1e-2));
  });
}

TEST(TrainingStep, ConvolutionsAndBatchNorm) {
  expect_trained_alike([] {
    auto net = conv_net();
    return training<SGD>(net.ptr(), classify(net, torch::randn({4, 3, 8, 8})), SGDOptions(0.05).momentum(0.9));
  });
  expect_trained_alike([] {
    auto net = conv_net();
    const at::Tensor x = torch::randn({4, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
    return training<AdamW>(net.ptr(), classify(net, x), AdamWOptions(1e-2));
  });
}

TEST(TrainingStep, RecomputedBatchNorms) {
  expect_trained_alike([] {
    auto net = conv_net();
    const at::Tensor x = torch::randn({4, 3, 8, 8}), y = torch::randint(0, 10, {4});
    return training<SGD>(
        net.ptr(),
        [=](int call) {
          const auto all = [net](const at::Tensor& input) mutable { return net->forward(input); };
          return nn::functional::cross_entropy(recompute::checkpoint(all, x * (1 + 0.1 * call)), y);
        },
        SGDOptions(0.01));
  });
}

TEST(TrainingStep, ValuesReadInTheMiddle) {
  expect_trained_alike([] {
    auto net = mlp();
    return training<AdamW>(net.ptr(), classify(net, torch::randn({8, 16})), AdamWOptions(1e-2),
                           [net](at::Tensor& loss) {
                             EXPECT_GT(loss.item<double>(), 0);
                             EXPECT_GT(nn::utils::clip_grad_norm_(net->parameters(), 0.5), 0);
                           });
  });
}

TEST(TrainingStep, AccumulatedGradients) {
  expect_trained_alike(
      [] {
        auto net = mlp();
        auto loss_of = classify(net, torch::randn({8, 16}));
        auto optimizer = std::make_shared<SGD>(net->parameters(), SGDOptions(0.01));
        return Program{[=](int call) -> Tensors {
                         const at::Tensor loss = loss_of(call);
                         loss.backward();
                         if (call % 2) {
                           optimizer->step();
                           optimizer->zero_grad(false);  // filled with zeros, not dropped
                         }
                         return {loss};
                       },
                       [=] { return state_of(*net); }};
      },
      3);
}

struct LstmNet : nn::Module {
  LstmNet() {
    cell = register_module("cell", nn::LSTMCell(8, 16));
    layer = register_module("layer", nn::LSTM(16, 16));
    out = register_module("out", nn::Linear(16, 4));
  }
  at::Tensor forward(const at::Tensor& x_TBC) {
    std::tuple<at::Tensor, at::Tensor> state(torch::zeros({x_TBC.size(1), 16}), torch::zeros({x_TBC.size(1), 16}));
    Tensors steps;
    for (const at::Tensor& x : x_TBC.unbind(0)) {
      state = cell(x, state);
      steps.push_back(std::get<0>(state));
    }
    return out(std::get<0>(layer(at::stack(steps))));
  }
  nn::LSTMCell cell{nullptr};
  nn::LSTM layer{nullptr};
  nn::Linear out{nullptr};
};

TEST(TrainingStep, LstmCellAndLayer) {
  expect_trained_alike([] {
    auto net = std::make_shared<LstmNet>();
    const at::Tensor x = torch::randn({5, 3, 8});
    return training<AdamW>(
        net, [=](int call) { return net->forward(x + 0.1 * call).pow(2).mean(); }, AdamWOptions(1e-2));
  });
}

TEST(TrainingStep, ForwardAlone) {
  expect_same([] {
    auto net = conv_net();
    net->eval();
    const at::Tensor x = torch::randn({4, 3, 8, 8});
    return Program{[=](int call) mutable -> Tensors {
      const c10::InferenceMode inference;
      return {net->forward(x * (call + 1))};
    }};
  });
}

}  // namespace
}  // namespace bellows::graph::testing
