#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "bellows/amp/autocast.h"
#include "bellows/core/grad_mode.h"
#include "bellows/models/bert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/gpt.h"
#include "bellows/models/head.h"
#include "bellows/models/resnet.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/tap/allocator.h"
#include "tests/parallel/placement/streamed_support.h"

// Models whose weights are read while they run give the same results as the same models in memory.
namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

/// A model and an input for it.
struct StreamedCase {
  const char* name;
  std::function<Model()> make;
  std::function<at::Tensor()> input;
};

at::Tensor token_ids(int64_t words) {
  return at::arange(3 * 7).mul(5).remainder(words - 1).add(1).view({3, 7});
}

std::vector<StreamedCase> streamed_cases() {
  return {{"digits_resnet", [] { return models::digits_resnet({.width = 8, .blocks = 2}); },
           [] {
             return at::rand({5, 1, 16, 16});
           }},
          {"bert",
           [] {
             return models::bert({.head = models::TextHead::masked_lm,
                                  .vocab_size = 101,
                                  .hidden_size = 32,
                                  .num_hidden_layers = 3,
                                  .num_attention_heads = 4,
                                  .intermediate_size = 48,
                                  .max_position_embeddings = 16});
           },
           [] { return token_ids(101); }},
          {"gpt2",
           [] { return models::gpt({.vocab_size = 99, .n_positions = 16, .n_embd = 32, .n_layer = 4, .n_head = 2}); },
           [] { return token_ids(99); }},
          {"gpt2 with fused layers",
           [] {
             return models::gpt(
                 {.vocab_size = 99, .n_positions = 16, .n_embd = 32, .n_layer = 3, .n_head = 2, .fused = true});
           },
           [] { return token_ids(99); }},
          {"encoder_decoder",
           [] {
             return models::encoder_decoder({.in_features = 3,
                                             .out_features = 2,
                                             .horizon = 4,
                                             .d_model = 32,
                                             .nhead = 4,
                                             .num_encoder_layers = 2,
                                             .num_decoder_layers = 2,
                                             .dim_feedforward = 40});
           },
           [] {
             return at::rand({2, 9, 3});
           }}};
}

/// The least budget: the largest module.
int64_t smallest_budget(const Model& model) {
  int64_t largest = 0;
  for (const MappedModule& module : infer_device_map(model, {.device_bytes = int64_t{1} << 40}).modules)
    largest = std::max(largest, module.bytes);
  return largest;
}

void expect_same_outputs(const StreamedCase& tested, at::ScalarType dtype) {
  SCOPED_TRACE(tested.name);
  const TemporaryFolder folder;
  torch::manual_seed(1);
  const Model resident = tested.make();
  resident.eval();
  at::Tensor input = tested.input();
  resident.to(dtype);
  if (input.is_floating_point()) input = input.to(dtype);
  save_weights(resident, folder / "model.safetensors");
  const inference_mode no_graph;
  const at::Tensor expected = resident.forward(input);
  const int64_t all = bytes_of_weights(resident), least = smallest_budget(resident);
  for (const int64_t budget : {least, least + (all - least) / 3, least + 2 * (all - least) / 3, 2 * all}) {
    SCOPED_TRACE(budget);
    torch::manual_seed(2);
    const c10::InferenceMode training(false);
    const Model model = tested.make();
    model.eval();
    model.to(dtype);
    const StreamedWeights weights(model, {.file = folder / "model.safetensors", .memory_bytes = budget});
    const inference_mode still_no_graph;
    for (int pass = 0; pass < 3; ++pass)
      EXPECT_TRUE(at::equal(weights.model().forward(input), expected)) << "pass " << pass;
    const StreamedWeightsCounters counters = weights.counters();
    EXPECT_LE(counters.peak_bytes, budget);
    EXPECT_EQ(counters.resident_bytes, weights.device_map().device_bytes);
    EXPECT_EQ(counters.streamed_bytes == 0, budget >= 2 * all);
    EXPECT_EQ(counters.loads > 0, counters.streamed_bytes > 0);
  }
}

TEST(StreamedWeights, ResultsAreBitIdenticalInFp32) {
  for (const StreamedCase& tested : streamed_cases()) expect_same_outputs(tested, at::kFloat);
}

TEST(StreamedWeights, ResultsAreBitIdenticalInBf16) {
  for (const StreamedCase& tested : streamed_cases()) {
    if (std::string_view(tested.name) == "encoder_decoder") continue;  // its positions are fp32
    expect_same_outputs(tested, at::kBFloat16);
  }
}

TEST(StreamedWeights, FilesOfAnotherDtypeAndLayoutAreConverted) {
  const TemporaryFolder folder;
  const Model resident = models::digits_resnet({.width = 8});
  resident.eval();
  save_weights(resident, folder / "model.safetensors");
  resident.to(at::kBFloat16);
  const at::Tensor input = at::rand({2, 1, 16, 16}).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  const auto channels_last = [](const Model& model) {
    const c10::NoGradGuard no_grad;
    for (auto [name, parameter] : model.named_parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  };
  channels_last(resident);
  const Model model = models::digits_resnet({.width = 8});
  model.eval();
  model.to(at::kBFloat16);
  channels_last(model);
  const StreamedWeights weights(model, {.file = folder / "model.safetensors", .memory_bytes = smallest_budget(model)});
  const no_grad no_graph;
  EXPECT_TRUE(at::equal(weights.model().forward(input), resident.forward(input)));
  EXPECT_GT(weights.counters().loads, 0);
}

TEST(StreamedWeights, LossesThatReadTheHeadThemselvesWork) {
  const TemporaryFolder folder;
  const auto make = [] {
    return models::gpt({.vocab_size = 99, .n_positions = 16, .n_embd = 32, .n_layer = 4, .n_head = 2});
  };
  const Model resident = make();
  resident.eval();
  save_weights(resident, folder / "gpt.safetensors");
  const Model model = make();
  model.eval();
  const StreamedWeights weights(model,
                                {.file = folder / "gpt.safetensors", .memory_bytes = smallest_budget(model) * 2});
  const at::Tensor ids = token_ids(99), targets = ids.flatten();
  const auto loss_of = [&](const Model& one) {
    const no_grad no_graph;
    return models::forward_with_head(one, ids,
                                     [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
                                       return nn::linear_cross_entropy(hidden.flatten(0, 1), weight, bias, targets);
                                     });
  };
  EXPECT_TRUE(at::equal(loss_of(weights.model()), loss_of(resident)));
}

TEST(StreamedWeights, SkippingOnlyRandomValuesKeepsMasks) {
  const tap::SkipInitialization only_random(/*fills=*/false);
  EXPECT_EQ(at::full({1 << 16}, 3.f).sum().item<double>(), 3 << 16);
  const at::Tensor drawn = at::zeros({1 << 16});
  drawn.uniform_(1, 2);
  EXPECT_EQ(drawn.sum().item<double>(), 0);
}

TEST(StreamedWeights, AutocastKeepsNoCastsOfAllWeights) {
  constexpr int64_t width = 512, layers = 8;  // 1 MiB per layer in fp32
  const TemporaryFolder folder;
  const Model model = linear_stack(layers, width);
  save_weights(model, folder / "stack.safetensors");
  const at::Tensor input = at::rand({4, width});
  tap::install_cpu_allocator();
  const no_grad no_graph;
  const auto forward = [&](const Model& one) {
    const amp::AutocastGuard autocast(c10::kCPU, at::kBFloat16);
    return one.forward(input);
  };
  const at::Tensor expected = forward(model);
  const int64_t budget = 2 * layer_bytes(width);
  const StreamedWeights weights(model, {.file = folder / "stack.safetensors", .memory_bytes = budget});
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  tap::reset_cpu_allocation_peak();
  EXPECT_TRUE(at::equal(forward(weights.model()), expected));
  const int64_t cast = layer_bytes(width) / 2;
  EXPECT_LT(tap::cpu_allocation_counters().peak_bytes - before, budget + 2 * cast) << "not casts of 8 layers";
}

TEST(StreamedWeights, OneReadOfEachModulePerPass) {
  constexpr int64_t width = 64, layers = 10;
  const TemporaryFolder folder;
  const Model model = linear_stack(layers, width);
  save_weights(model, folder / "stack.safetensors");
  const StreamedWeights weights(model, {.file = folder / "stack.safetensors", .memory_bytes = 5 * layer_bytes(width)});
  EXPECT_EQ(weights.counters().resident_bytes, 3 * layer_bytes(width));
  const no_grad no_graph;
  const Model streamed = weights.model();
  for (int pass = 0; pass < 4; ++pass) streamed.forward(at::ones({1, width}));
  const StreamedWeightsCounters counters = weights.counters();
  EXPECT_EQ(counters.loads, 4 * 7 + 1) << "the first module of the next pass is already loaded";
  EXPECT_EQ(counters.prefetched, counters.loads - 1) << "all but the very first one";
  EXPECT_EQ(counters.peak_bytes, 5 * layer_bytes(width));
}

TEST(StreamedWeights, WeightsInHostMemoryGiveTheSameResults) {
  constexpr int64_t width = 64;
  const TemporaryFolder folder;
  const Model model = linear_stack(6, width);
  const at::Tensor input = at::rand({3, width});
  const no_grad no_graph;
  const at::Tensor expected = model.forward(input);
  save_weights(model, folder / "stack.safetensors");
  const DeviceMap map =
      infer_device_map(model, {.device_bytes = 3 * layer_bytes(width), .host_bytes = 2 * layer_bytes(width)});
  EXPECT_EQ(map.host_bytes, 2 * layer_bytes(width));
  const StreamedWeights weights(model, {.file = folder / "stack.safetensors", .device_map = map});
  const int64_t before = weights.counters().bytes_read;
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(at::equal(weights.model().forward(input), expected));
  EXPECT_EQ(weights.counters().resident_bytes, layer_bytes(width));
  EXPECT_LE(weights.counters().bytes_read - before, (3 * 3 + 1) * layer_bytes(width)) << "only those on disk";
}

TEST(StreamedWeights, CountsTheBytesOfTheFile) {
  constexpr int64_t width = 64;
  const TemporaryFolder folder;
  const Model model = linear_stack(6, width);
  save_weights(model, folder / "stack.safetensors");
  model.to(at::kBFloat16);
  const StreamedWeights weights(model, {.file = folder / "stack.safetensors", .memory_bytes = layer_bytes(width)});
  const no_grad no_graph;
  for (int pass = 0; pass < 4; ++pass) weights.model().forward(at::rand({3, width}, at::kBFloat16));
  const StreamedWeightsCounters counters = weights.counters();
  EXPECT_GT(counters.loads, 8);
  EXPECT_LE(counters.bytes_read, counters.loads * layer_bytes(width));
  EXPECT_GE(counters.bytes_read, (counters.loads - 2) * layer_bytes(width)) << "two may still be read";
}

/// Anonymous memory of this process in MiB.
int64_t anonymous_memory_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) / 1024;
  }
  return 0;
}

TEST(StreamedWeights, TheProcessNeverHoldsTheWholeModel) {
  constexpr int64_t width = 2048, layers = 16;  // 16 MiB per layer, 256 MiB together
  const TemporaryFolder folder;
  at::Tensor expected;
  const at::Tensor input = at::rand({1, width});
  const no_grad no_graph;
  {
    const Model model = linear_stack(layers, width);
    save_weights(model, folder / "stack.safetensors");
    expected = model.forward(input);
  }
  const int64_t before = anonymous_memory_mb();
  std::optional<Model> model;
  {
    const tap::SkipInitialization no_memory;
    model = linear_stack(layers, width);
  }
  const int64_t budget = 4 * layer_bytes(width);
  const StreamedWeights weights(*model, {.file = folder / "stack.safetensors", .memory_bytes = budget});
  int64_t most = 0;
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_TRUE(at::equal(weights.model().forward(input), expected));
    most = std::max(most, anonymous_memory_mb() - before);
  }
  EXPECT_LE(most, (budget >> 20) + 12) << "of 256 MiB";
  EXPECT_LE(weights.counters().peak_bytes, budget);
}

TEST(StreamedWeights, ThreadsTakeTurns) {
  constexpr int64_t width = 64;
  const TemporaryFolder folder;
  const Model model = linear_stack(8, width);
  save_weights(model, folder / "stack.safetensors");
  const at::Tensor input = at::rand({2, width});
  at::Tensor expected;
  {
    const no_grad no_graph;
    expected = model.forward(input);
  }
  const StreamedWeights weights(model, {.file = folder / "stack.safetensors", .memory_bytes = 3 * layer_bytes(width)});
  std::vector<std::thread> threads;
  std::atomic<int> correct = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const no_grad no_graph;
      for (int pass = 0; pass < 20; ++pass) correct += at::equal(weights.model().forward(input), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(correct, 80);
  EXPECT_LE(weights.counters().peak_bytes, 3 * layer_bytes(width));
}

TEST(StreamedWeights, AGuardServesTheModuleItself) {
  constexpr int64_t width = 64;
  const TemporaryFolder folder;
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::Tanh(), torch::nn::Linear(width, width),
                            torch::nn::Linear(width, width));
  net->eval();
  const Model model = Model::of(net);
  const at::Tensor input = at::rand({2, width});
  const no_grad no_graph;
  const at::Tensor expected = net->forward(input);
  save_weights(model, folder / "net.safetensors");
  const StreamedWeights weights(model, {.file = folder / "net.safetensors", .memory_bytes = layer_bytes(width)});
  EXPECT_THAT(message_of([&] { net->forward(input); }), HasSubstr("is streamed from"));
  {
    const StreamedWeights::Guard guard(weights);
    const StreamedWeights::Guard again(weights);
    EXPECT_TRUE(at::equal(net->forward(input), expected));
    EXPECT_TRUE(at::equal(weights.model().forward(input), expected));
  }
  EXPECT_THAT(message_of([&] { net->forward(input); }), HasSubstr("StreamedWeights::Guard"));
}

TEST(StreamedWeights, OutputsAreIndependentOfTheWeights) {
  struct Parameter final : torch::nn::Module {
    Parameter() {
      weight = register_parameter("weight", at::rand({4, 16}));
      other = register_module("other", torch::nn::Linear(16, 16));
      eval();
    }
    at::Tensor forward(const at::Tensor& x) { return other->forward(x).sum().item<float>() > 1e9 ? x : weight[1]; }
    at::Tensor weight;
    torch::nn::Linear other{nullptr};
  };
  const TemporaryFolder folder;
  const auto net = std::make_shared<Parameter>();
  const at::Tensor expected = net->weight[1].detach().clone();
  const Model model = Model::of(net);
  save_weights(model, folder / "net.safetensors");
  const StreamedWeights weights(model, {.file = folder / "net.safetensors", .memory_bytes = 4 * (16 * 16 + 16)});
  const no_grad no_graph;
  const at::Tensor first = weights.model().forward(at::ones({1, 16}));
  weights.model().forward(at::ones({1, 16}));
  EXPECT_TRUE(at::equal(first, expected));
}

TEST(StreamedWeights, TheModelOutlivesTheObject) {
  constexpr int64_t width = 64;
  const TemporaryFolder folder;
  const Model model = linear_stack(4, width);
  save_weights(model, folder / "stack.safetensors");
  std::optional<Model> streamed;
  {
    const StreamedWeights weights(model,
                                  {.file = folder / "stack.safetensors", .memory_bytes = 2 * layer_bytes(width)});
    streamed = weights.model();
  }
  const no_grad no_graph;
  EXPECT_EQ(streamed->forward(at::ones({1, width})).size(1), width);
  streamed.reset();
  EXPECT_THAT(message_of([&] { model.forward(at::ones({1, width})); }), HasSubstr("is streamed from"));
}

}  // namespace
}  // namespace bellows::parallel::testing
