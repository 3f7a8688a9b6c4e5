// What a call of a compiled function asks of libtorch's allocator.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <ATen/record_function.h>

#include <chrono>
#include <functional>
#include <thread>

#include "bellows/compile.h"
#include "bellows/models/resnet.h"
#include "bellows/tap/allocator.h"
#include "tests/models/small_models.h"

namespace bellows::compile_detail::testing {
namespace {

namespace nn = torch::nn;
using Step = std::function<at::Tensor()>;

Step step_of(const Step& loss_of, const std::shared_ptr<torch::optim::Optimizer>& optimizer) {
  return [=] {
    optimizer->zero_grad();
    const at::Tensor loss = loss_of();
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
}

Step mlp_step() {
  nn::Sequential net(nn::Linear(64, 256), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({256})), nn::Linear(256, 256),
                     nn::Tanh(), nn::Linear(256, 10));
  const at::Tensor x = torch::randn({48, 64}), y = torch::randint(0, 10, {48});
  return step_of([=]() mutable { return nn::functional::cross_entropy(net->forward(x), y); },
                 std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3)));
}

Step conv_step() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), nn::BatchNorm2d(16), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1).stride(2)), nn::BatchNorm2d(32), nn::ReLU(),
                     nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(32, 10));
  const at::Tensor x = torch::randn({8, 3, 24, 24}), y = torch::randint(0, 10, {8});
  return step_of([=]() mutable { return nn::functional::cross_entropy(net->forward(x), y); },
                 std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9)));
}

Step bert_step(int64_t batch) {
  models::BertOptions options = models::without_dropout(models::wide_bert());
  options.vocab_size = 5000;
  options.hidden_size = 64;
  options.num_hidden_layers = 3;
  options.num_attention_heads = 2;
  options.intermediate_size = 256;
  options.max_position_embeddings = 64;
  const Model model = models::bert(options);
  const at::Tensor x = torch::randint(1, 50, {batch, 64}), y = torch::randint(0, 2, {batch});
  return step_of([=] { return torch::cross_entropy_loss(model.forward(x), y); },
                 std::make_shared<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(1e-3)));
}

Step resnet_step() {
  const Model model = models::resnet18({.num_classes = 10});
  const at::Tensor x = torch::randn({8, 3, 64, 64}), y = torch::randint(0, 10, {8});
  return step_of([=] { return torch::cross_entropy_loss(model.forward(x), y); },
                 std::make_shared<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9)));
}

/// Calls until programs run as they will from then on.
template <class Compiled>
void settle(Compiled& compiled) {
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < 4; ++call) compiled();
  while (!compiled.ready()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(240));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (int call = 0; call < 4; ++call) compiled();
}

thread_local int operators_running = 0;

/// Counts allocations on the threads of a call: while its function runs, and after that outside of operators.
struct Counter : tap::AllocationListener {
  void on_allocation(const tap::AllocationEvent& event) override {
    if (event.bytes <= 0) return;
    if (in_function)
      ++while_called;
    else if (operators_running == 0)
      ++outside;
  }
  std::atomic<bool> in_function = true;
  std::atomic<int64_t> while_called = 0, outside = 0;
};

/// Tells operators that run from those that a region answers: the latter are called before its function ends.
class OperatorsWatched {
 public:
  OperatorsWatched()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(
                                          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
                                            ++operators_running;
                                            return nullptr;
                                          },
                                          [](const at::RecordFunction&, at::ObserverContext*) { --operators_running; })
                                          .scopes({at::RecordScope::FUNCTION}))) {}
  ~OperatorsWatched() { at::removeCallback(handle_); }

 private:
  at::CallbackHandle handle_;
};

/// Params: factories – operators that run at once in each call, and make a tensor
void expect_no_allocations(const Step& step, int64_t factories) {
  const auto counter = std::make_shared<Counter>();
  auto compiled = compile(
      [=] {
        at::Tensor result = step();
        counter->in_function = false;
        return result;
      },
      {.always = true});
  settle(compiled);
  const OperatorsWatched watched;
  const tap::AllocationGuard guard(counter);
  for (int call = 0; call < 3; ++call) {
    counter->in_function = true;
    counter->while_called = counter->outside = 0;
    compiled();
    EXPECT_EQ(counter->outside, 0) << "call " << call;
    EXPECT_LE(counter->while_called, factories) << "call " << call;
  }
}

TEST(CompiledMemory, AStepAllocatesNothingOutsideOfOperators) {
  expect_no_allocations(mlp_step(), 1);  // backward()'s first gradient
  expect_no_allocations(conv_step(), 1);
}

/// The most bytes at once that a model and its steps need, parameters and all.
int64_t peak_bytes(const std::function<Step()>& make, bool compiled) {
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  const Step step = make();
  auto run = compile(step, {.always = true});
  if (compiled) settle(run);
  for (int call = 0; call < 3; ++call) {
    if (call == 2) tap::reset_cpu_allocation_peak();
    compiled ? run() : step();
  }
  return tap::cpu_allocation_counters().peak_bytes - before;
}

/// Params: most – of a compiled step, as a share of what a plain one needs
void expect_peak(const std::function<Step()>& make, double most) {
  tap::install_cpu_allocator();
  const auto plain = static_cast<double>(peak_bytes(make, false)),
             compiled = static_cast<double>(peak_bytes(make, true));
  EXPECT_LE(compiled / plain, most) << compiled << " bytes, plainly " << plain;
}

// Gradients lie in memory that activations have left.
TEST(CompiledMemory, AStepNeedsNoMoreThanAPlainOne) {
  expect_peak([] { return bert_step(1); }, 0.85);
  expect_peak(resnet_step, 1);
}

// What operators make themselves is not in the arena: attention's gradients and the embedding's come on top of the most that activations need.
TEST(CompiledMemory, AStepNeedsLittleMoreThanAPlainOneWhereActivationsAreMost) {
  expect_peak([] { return bert_step(16); }, 1.025);
}

}  // namespace
}  // namespace bellows::compile_detail::testing
