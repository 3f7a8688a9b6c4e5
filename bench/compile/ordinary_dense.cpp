#include <cmath>

#include "bench/compile/ordinary_training.h"

namespace bellows::bench {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

TrainingRun linear_regression(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  nn::Linear model(4, 1);
  const at::Tensor weight = torch::randn({4, 1});
  auto batches = four_batches([&]() -> Batch {
    const at::Tensor x = torch::randn({32, 4});
    return {x, x.mm(weight) + 0.1 * torch::randn({32, 1})};
  });
  return training_run(model->parameters(), sgd(model->parameters(), 1e-2), std::move(batches), autocast,
                      [model](const Batch& batch) mutable { return F::mse_loss(model(batch[0]), batch[1]); });
}

TrainingRun perceptron(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  nn::Sequential model{nn::Linear(784, 512), nn::ReLU(),       nn::Dropout(0.2),   nn::Linear(512, 512),
                       nn::ReLU(),           nn::Dropout(0.2), nn::Linear(512, 10)};
  auto batches = four_batches([]() -> Batch {
    return {torch::rand({64, 784}), torch::randint(0, 10, {64}, at::kLong)};
  });
  return training_run(
      model->parameters(), sgd(model->parameters(), 1e-2, 0.9), std::move(batches), autocast,
      [model](const Batch& batch) mutable { return F::cross_entropy(model->forward(batch[0]), batch[1]); });
}

struct FactorizationImpl : nn::Module {
  FactorizationImpl(int64_t users, int64_t items, int64_t factors)
      : user(register_module("user", nn::Embedding(users, factors))),
        item(register_module("item", nn::Embedding(items, factors))),
        user_bias(register_module("user_bias", nn::Embedding(users, 1))),
        item_bias(register_module("item_bias", nn::Embedding(items, 1))) {}

  at::Tensor forward(const at::Tensor& users, const at::Tensor& items) {
    const at::Tensor fit = (user(users) * item(items)).sum(1);
    return fit + user_bias(users).squeeze(1) + item_bias(items).squeeze(1);
  }

  nn::Embedding user, item, user_bias, item_bias;
};
TORCH_MODULE(Factorization);

TrainingRun matrix_factorization(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  Factorization model(943, 1682, 32);  // the users and films of MovieLens 100k
  auto batches = four_batches([]() -> Batch {
    return {torch::randint(0, 943, {512}, at::kLong), torch::randint(0, 1682, {512}, at::kLong),
            1 + 4 * torch::rand({512})};
  });
  return training_run(model->parameters(), adam(model->parameters()), std::move(batches), autocast,
                      [model](const Batch& batch) mutable {
                        return F::mse_loss(model->forward(batch[0], batch[1]).to(at::kFloat), batch[2]);
                      });
}

struct GraphNetworkImpl : nn::Module {
  GraphNetworkImpl(int64_t features, int64_t hidden, int64_t classes)
      : first(register_module("first", nn::Linear(nn::LinearOptions(features, hidden).bias(false)))),
        second(register_module("second", nn::Linear(nn::LinearOptions(hidden, classes).bias(false)))),
        first_bias(register_parameter("first_bias", torch::zeros({hidden}))),
        second_bias(register_parameter("second_bias", torch::zeros({classes}))) {}

  /// Shapes: x [nodes, features], adjacency sparse [nodes, nodes]
  at::Tensor forward(at::Tensor x, const at::Tensor& adjacency) {
    x = torch::relu(torch::mm(adjacency, first(x)) + first_bias);
    x = torch::dropout(x, 0.5, is_training());
    x = torch::mm(adjacency, second(x)) + second_bias;
    return torch::log_softmax(x, 1);
  }

  nn::Linear first, second;
  at::Tensor first_bias, second_bias;
};
TORCH_MODULE(GraphNetwork);

/// Returns a symmetric adjacency matrix with self-loops, normalized by the degrees of both nodes.
at::Tensor random_graph(int64_t nodes, int64_t edges) {
  const at::Tensor ends = torch::randint(0, nodes, {2, edges}, at::kLong), self = torch::arange(nodes).expand({2, -1});
  const at::Tensor pairs = torch::cat({ends, ends.flip(0), self}, 1);
  at::Tensor graph = torch::sparse_coo_tensor(pairs, torch::ones({pairs.size(1)}), {nodes, nodes}).coalesce();
  const at::Tensor scale = torch::zeros({nodes}).index_add(0, graph.indices()[0], graph.values()).rsqrt();
  const at::Tensor values = graph.values() * scale.index({graph.indices()[0]}) * scale.index({graph.indices()[1]});
  return torch::sparse_coo_tensor(graph.indices(), values, {nodes, nodes}).coalesce();
}

TrainingRun graph_network(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  constexpr int64_t nodes = 2708, features = 1433, classes = 7;  // as in Cora
  GraphNetwork model(features, 16, classes);
  const at::Tensor adjacency = random_graph(nodes, 5278);
  const at::Tensor x = torch::rand({nodes, features}).lt(0.0127).to(at::kFloat);
  const at::Tensor labels = torch::randint(0, classes, {nodes}, at::kLong), known = torch::arange(140);
  return training_run(model->parameters(), adam(model->parameters(), 1e-2, 5e-4), {{x, labels}}, autocast,
                      [=](const Batch& batch) mutable {
                        const at::Tensor output = model->forward(batch[0], adjacency);
                        return F::nll_loss(output.index_select(0, known), batch[1].index_select(0, known));
                      });
}

/// The pole on a cart of the classic control tasks, in host code.
class CartPole {
 public:
  at::Tensor state() const {
    return torch::tensor({place_, speed_, angle_, turn_}, at::kDouble).to(at::kFloat).unsqueeze(0);
  }
  void reset() { place_ = speed_ = turn_ = 0, angle_ = 0.03; }
  /// Returns the reward.
  double push(bool right) {
    constexpr double gravity = 9.8, pole = 0.1, total = 1.1, half = 0.5, tick = 0.02;
    const double sine = std::sin(angle_), cosine = std::cos(angle_);
    const double force = ((right ? 10 : -10) + pole * half * turn_ * turn_ * sine) / total;
    const double turn = (gravity * sine - cosine * force) / (half * (4.0 / 3 - pole * cosine * cosine / total));
    const double speed = force - pole * half * turn * cosine / total;
    place_ += tick * speed_, speed_ += tick * speed, angle_ += tick * turn_, turn_ += tick * turn;
    return std::abs(angle_) < 0.21 ? 1 : 0;
  }

 private:
  double place_ = 0, speed_ = 0, angle_ = 0.03, turn_ = 0;
};

at::Tensor discounted(const std::vector<double>& rewards) {
  std::vector<double> returns(rewards.size());
  double sum = 0;
  for (size_t i = rewards.size(); i-- > 0;) returns[i] = sum = rewards[i] + 0.99 * sum;
  const at::Tensor all = torch::tensor(returns, at::kDouble).to(at::kFloat);
  return (all - all.mean()) / (all.std() + 1e-6);
}

TrainingRun reinforce(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  nn::Sequential policy{nn::Linear(4, 128), nn::Dropout(0.6), nn::ReLU(), nn::Linear(128, 2)};
  const auto parameters = policy->parameters();
  auto step = [policy, optimizer = adam(parameters, 1e-2), autocast]() mutable {
    CartPole game;
    std::vector<at::Tensor> log_probabilities;
    std::vector<double> rewards;
    for (int tick = 0; tick < 60; ++tick) {
      const PlainAutocast guard(autocast);
      const at::Tensor probabilities = torch::softmax(policy->forward(game.state()).to(at::kFloat), 1);
      const at::Tensor action = probabilities.detach().multinomial(1);
      log_probabilities.push_back(probabilities.gather(1, action).log().view({1}));
      rewards.push_back(game.push(action.item<int64_t>() == 1));
    }
    optimizer->zero_grad();
    const at::Tensor loss = -(torch::cat(log_probabilities) * discounted(rewards)).sum();
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
  return {std::move(step), parameters};
}

}  // namespace

std::vector<OrdinaryProgram> dense_programs() {
  return {{.name = "regression", .about = "linear regression, 32x4, SGD", .make = linear_regression},
          {.name = "mlp", .about = "perceptron 784-512-512-10, dropout, batch 64, SGD", .make = perceptron},
          {.name = "factorization",
           .about = "matrix factorization, 943x1682, batch 512, Adam",
           .make = matrix_factorization},
          {.name = "graph", .about = "graph network, 2708 nodes, sparse matrix, Adam", .make = graph_network},
          {.name = "reinforce",
           .about = "REINFORCE, 60 one-row forward passes, Adam",
           .make = reinforce,
           .bf16_tolerance = 0}};
}

}  // namespace bellows::bench
