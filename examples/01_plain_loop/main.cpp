// A training loop of your own, with three lines of Bellows: data, optimizer, precision.
//
// Everything else is libtorch: leave one of the three out, and the loop still runs.
#include <bellows/bellows.h>
#include <torch/torch.h>

#include <cstdio>

namespace nn = torch::nn;
namespace F = torch::nn::functional;

double accuracy(nn::Sequential& net, const bellows::data::Dataset& data) {
  const torch::NoGradGuard no_grad;
  net->eval();
  int64_t right = 0;
  auto loader = data.loader();
  for (const auto& batch : loader.epoch(0)) {
    right += net->forward(batch["image"]).argmax(1).eq(batch["label"]).sum().item<int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(data.size());
}

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "data/digits";
  torch::manual_seed(1);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::BatchNorm2d(16), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)), nn::BatchNorm2d(32), nn::ReLU(),
                     nn::AdaptiveAvgPool2d(2), nn::Flatten(), nn::Linear(128, 10));

  // 1. Shards are read, decoded and normalised by threads of their own; the order depends on the seed alone.
  auto train = bellows::data::open(folder, {.split = "train"}).normalize().shuffle(1).batch(32).threads(2).loader();
  // 2. One sweep over memory a parameter, instead of a dozen operators.
  bellows::optim::AdamW optimizer(net->parameters(), {.lr = 3e-3});

  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    double sum = 0;
    int64_t steps = 0;
    for (const auto& batch : train.epoch(epoch)) {
      torch::Tensor loss;
      {
        // 3. Products in bf16, losses and norms in fp32; backward stays outside.
        const bellows::amp::AutocastGuard guard(torch::kCPU, torch::kBFloat16);
        loss = F::cross_entropy(net->forward(batch["image"]), batch["label"]);
      }
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
      ++steps;
    }
    std::printf("epoch %lld: loss %.4f\n", static_cast<long long>(epoch + 1), sum / static_cast<double>(steps));
  }
  const auto held_out = bellows::data::open(folder, {.split = "test"}).normalize().batch(256);
  std::printf("held-out accuracy %.3f\n", accuracy(net, held_out));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
