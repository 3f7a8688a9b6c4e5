// Differentiable architecture search (first-order DARTS, arXiv:1806.09055) on the digits. One job trains the weights on
// one half of the data, and the alternate job trains the architecture on the other half. The program runs in one
// process, or on several ranks: `bellows launch --ranks 2 darts data/digits`.
#include <bellows/comm.h>
#include <bellows/optim.h>
#include <bellows/train.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <memory>
#include <vector>

namespace nn = torch::nn;
namespace bt = bellows::train;

constexpr int64_t channels = 12, nodes = 3, edges = nodes * (nodes - 1) / 2;
constexpr std::array<const char*, 4> operations = {"none", "skip", "convolution 1x1", "convolution 3x3"};
constexpr auto choices = static_cast<int64_t>(operations.size());

// The sum of all operations, weighted by the softmax of the architecture parameters.
struct MixedImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& share) {
    return share[1] * x + share[2] * one->forward(x) + share[3] * three->forward(x);
  }
  static nn::Sequential convolution(int64_t in, int64_t side) {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, channels, side).padding(side / 2).bias(false)),
                          nn::BatchNorm2d(channels), nn::ReLU());
  }
  nn::Sequential one = register_module("one", convolution(channels, 1));
  nn::Sequential three = register_module("three", convolution(channels, 3));
};
TORCH_MODULE(Mixed);

// A cell of three nodes with an edge from each node to all later ones.
struct CellImpl : nn::Module {
  CellImpl() {
    for (int64_t i = 0; i < edges; ++i) mixed->push_back(Mixed());
  }
  torch::Tensor forward(const torch::Tensor& image) {
    const torch::Tensor share = alpha.softmax(1);
    std::vector<torch::Tensor> node = {stem->forward(image)};
    for (int64_t to = 1, edge = 0; to < nodes; ++to) {
      torch::Tensor sum = torch::zeros_like(node[0]);
      for (int64_t from = 0; from < to; ++from, ++edge)
        sum = sum + mixed->at<MixedImpl>(edge).forward(node[from], share[edge]);
      node.push_back(sum);
    }
    return classifier->forward(node.back().amax({2, 3}));
  }
  std::vector<torch::Tensor> weights() const {  // all parameters except the architecture
    std::vector<torch::Tensor> result = parameters();
    std::erase_if(result, [&](const torch::Tensor& one) { return one.is_same(alpha); });
    return result;
  }
  nn::Sequential stem = register_module("stem", MixedImpl::convolution(1, 3));
  nn::ModuleList mixed = register_module("mixed", nn::ModuleList());
  nn::Linear classifier = register_module("classifier", nn::Linear(channels, 10));
  torch::Tensor alpha = register_parameter("alpha", torch::zeros({edges, choices}));
};
TORCH_MODULE(Cell);

bellows::data::Dataset half(const bellows::data::Dataset& data, int64_t first) {
  std::vector<int64_t> indices;
  for (int64_t i = first; i < data.size(); i += 2) indices.push_back(i);
  return data.subset(indices);
}

int main(int argc, char** argv) try {
  bt::Recipe recipe;
  recipe.data = argc > 1 ? argv[1] : "data/digits";
  recipe.epochs = 10;
  recipe.batch_size = 64;
  bellows::seed_everything(1);
  const Cell cell;
  const auto model = bellows::Model::of(cell, "cell");
  const auto train = bt::open_train_data(recipe);

  bt::Job job{
      recipe,
      model,
      {std::make_shared<bellows::optim::SGD>(cell->weights(), bellows::optim::SGDOptions{.lr = 0.05, .momentum = 0.9})},
      bt::cross_entropy_loss(model),
      half(train, 0),
      bt::open_eval_data(recipe)};
  job.alternate = std::make_shared<bt::Job>(
      bt::Job{recipe,
              model,
              {std::make_shared<bellows::optim::Adam>(std::vector<torch::Tensor>{cell->alpha},
                                                      bellows::optim::AdamOptions{.lr = 0.02})},
              bt::cross_entropy_loss(model),
              half(train, 1),
              {}});

  const auto world = bellows::comm::init();
  const bool first = world.rank() == 0;
  bt::Callbacks callbacks;
  callbacks.on_epoch = [&](const bt::EpochRecord& record) {
    if (first)
      std::printf("epoch %lld: held-out accuracy %.3f\n", static_cast<long long>(record.epoch + 1),
                  record.eval_accuracy);
  };
  bt::Trainer trainer(recipe, callbacks);
  trainer.set_process_group(world);
  trainer.fit(std::move(job));

  const torch::Tensor share = cell->alpha.detach().softmax(1);
  for (int64_t to = 1, edge = 0; first && to < nodes; ++to) {
    for (int64_t from = 0; from < to; ++from, ++edge) {
      const auto best = share[edge].argmax().item<int64_t>();
      std::printf("node %lld to %lld: %s (%.2f)\n", static_cast<long long>(from), static_cast<long long>(to),
                  operations[best], share[edge][best].item<double>());
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
