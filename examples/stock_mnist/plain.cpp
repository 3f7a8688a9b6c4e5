// A small convolutional network on handwritten digits, the way libtorch's tutorials train it.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

#include "digits.h"

namespace nn = torch::nn;
using torch::data::make_data_loader;
using torch::data::transforms::Normalize;
using torch::data::transforms::Stack;

constexpr int64_t batch_size = 64, epochs = 10;

struct NetImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(drop2(conv2(x)), 2));
    x = torch::relu(fc1(x.flatten(1)));
    x = torch::dropout(x, 0.2, is_training());
    return torch::log_softmax(fc2(x), 1);
  }

  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 10, 3).padding(1)));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(10, 20, 3).padding(1)));
  nn::Dropout2d drop2 = register_module("drop2", nn::Dropout2d(0.1));
  nn::Linear fc1 = register_module("fc1", nn::Linear(80, 50));
  nn::Linear fc2 = register_module("fc2", nn::Linear(50, 10));
};
TORCH_MODULE(Net);

template <class Loader>
void train(Net& net, Loader&& loader, torch::optim::Optimizer& optimizer) {
  net->train();
  for (auto& batch : loader) {
    optimizer.zero_grad();
    auto loss = torch::nll_loss(net(batch.data), batch.target);
    loss.backward();
    optimizer.step();
  }
}

template <class Loader>
double test(Net& net, Loader& loader, size_t size) {
  const torch::NoGradGuard no_grad;
  net->eval();
  int64_t right = 0;
  for (auto& batch : loader) right += net(batch.data).argmax(1).eq(batch.target).sum().template item<int64_t>();
  return static_cast<double>(right) / static_cast<double>(size);
}

int main(int argc, char** argv) try {
  const std::string root = argc > 1 ? argv[1] : "data/digits";
  torch::manual_seed(1);
  Net net;

  auto train_set = make_data_loader(Digits(root, "train").map(Normalize<>(0.3053, 0.376)).map(Stack<>()), batch_size);
  auto test_set = Digits(root, "test").map(Normalize<>(0.3053, 0.376)).map(Stack<>());
  const size_t test_size = *test_set.size();
  auto test_loader = make_data_loader(std::move(test_set), 256);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  double seconds = 0;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    train(net, *train_set, optimizer);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::printf("%.2f s of training, held-out accuracy %.3f\n", seconds, test(net, *test_loader, test_size));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
