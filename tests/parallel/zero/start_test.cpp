#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/parallel/zero/weights_source.h"
#include "bellows/system/file.h"
#include "bellows/tap/skip_initialization.h"
#include "tests/parallel/zero/blocks.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

// ZeRO-3 from a file: each rank reads only its shards, and the model itself needs no memory.
namespace bellows::parallel::testing::zero {
namespace {

using ::testing::HasSubstr;

TEST(ZeroStart, ReadsTheWeightsOfOneProcess) {
  const TemporaryFolder folder;
  NetModel saved(at::kDouble, /*seed=*/3);
  io::save_safetensors(folder / "net.safetensors", saved.model.named_parameters());
  const OptimizerPtr optimizer = adamw()(saved.net->distinct());
  for (int64_t step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    saved.net->loss(step, 0, 1).backward();
    optimizer->step();
  }
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      NetModel m(at::kDouble, /*seed=*/group.rank());
      const auto sharded =
          zero_optimizer(adamw()(m.net->distinct()), m.model, group,
                         {.stage = 3, .bucket_bytes = small_bucket, .weights_file = folder / "net.safetensors"});
      for (int64_t step = 0; step < 5; ++step) {
        sharded->zero_grad();
        m.net->loss(step, group.rank(), group.size()).backward();
        sharded->step();
      }
      expect_close(m.net->values(), saved.net->values(), 1e-9);
    });
  }
}

TEST(ZeroStart, FilesThatDoNotFitAreExplained) {
  const TemporaryFolder folder;
  NamedTensors tensors = NetModel().model.named_parameters();
  tensors[0].first = "conv1.weight";
  tensors[3].second = at::zeros({8}, at::kDouble);
  io::save_safetensors(folder / "net.safetensors", tensors);
  run_ranks(2, [&](const comm::Group& group) {
    const std::string message = message_of([&] {
      NetModel m;
      zero_optimizer(adamw()(m.net->distinct()), m.model, group,
                     {.stage = 3, .weights_file = folder / "net.safetensors"});
    });
    EXPECT_THAT(message, HasSubstr("\"conv.weight\" is missing. Did you mean \"conv1.weight\"?"));
    EXPECT_THAT(message, HasSubstr("\"fc.bias\" has sizes [8], but the model has [7]."));
  });
}

TEST(ZeroStart, FilesThatAreTruncatedAreReported) {
  const TemporaryFolder folder;
  NetModel m;
  io::save_safetensors(folder / "net.safetensors", m.model.named_parameters());
  run_ranks(1, [&](const comm::Group& group) {
    const WeightsSource weights(folder / "net.safetensors", m.model, group);
    std::filesystem::resize_file(folder / "net.safetensors", 16);  // the last page of the file is gone
    EXPECT_THAT(message_of([&] { weights.read("conv.weight", m.net->distinct().front().detach()); }),
                HasSubstr("the file changed while its weights were in use, so \"conv.weight\" cannot be read"));
  });
}

TEST(ZeroStart, AllRanksReportATensorThatOneCannotRead) {
  const TemporaryFolder folder;
  const std::string file = folder / "net.safetensors";
  NamedTensors tensors = NetModel().model.named_parameters();
  for (auto& [name, tensor] : tensors) {
    if (name == "conv.bias") tensor = at::zeros({3}, at::kChar);
  }
  io::save_safetensors(file, tensors);
  // Six elements of 4 bits, which libtorch cannot read. They are in the shard of one rank.
  const std::string written = R"("I8","shape":[3])", unreadable = R"("F4","shape":[6])";
  std::string bytes = read_text_file(file);
  ASSERT_NE(bytes.find(written), std::string::npos);
  write_text_file(file, bytes.replace(bytes.find(written), written.size(), unreadable));
  run_ranks(2, [&](const comm::Group& group) {
    NetModel m;
    const std::string message = message_of([&] {
      zero_optimizer(adamw()(m.net->distinct()), m.model, group,
                     {.stage = 3, .bucket_bytes = small_bucket, .weights_file = file});
    });
    EXPECT_THAT(message, HasSubstr("\"conv.bias\" has dtype F4"));
  });
}

/// Anonymous memory of this process in MiB.
int64_t anonymous_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) / 1024;
  }
  return 0;
}

TEST(ZeroStart, NoRankHoldsTheWholeModel) {
  constexpr int64_t width = 1024, layers = 16;  // 64 MiB in fp32
  const TemporaryFolder folder;
  const auto make = [&] {
    torch::nn::Sequential net;
    for (int64_t layer = 0; layer < layers; ++layer) net->push_back(torch::nn::Linear(width, width));
    return net;
  };
  double sum = 0;
  {
    const torch::nn::Sequential net = make();
    NamedTensors tensors;
    for (const auto& item : net->named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
    io::save_safetensors(folder / "large.safetensors", tensors);
    sum = tensors.front().second.sum().item<double>();
  }
  run_ranks(4, [&](const comm::Group& group) {
    const int64_t before = anonymous_mb();
    comm::barrier(group);
    torch::nn::Sequential net;
    {
      const tap::SkipInitialization no_memory;
      net = make();
    }
    comm::barrier(group);
    EXPECT_LT(anonymous_mb() - before, 8) << "four models that nobody touched";
    const auto optimizer =
        zero_optimizer(std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 0.1}), Model::of(net),
                       group, {.stage = 3, .bucket_bytes = 4 << 20, .weights_file = folder / "large.safetensors"});
    comm::barrier(group);
    EXPECT_LT(anonymous_mb() - before, 64 + 16) << "four shards, which make one model";
    EXPECT_NEAR(net->parameters().front().sum().item<double>(), sum, 1e-3);
  });
}

TEST(SkipInitialization, LeavesOtherTensorsAndThreadsAlone) {
  const at::Tensor large = at::zeros({1 << 16});
  {
    const tap::SkipInitialization skip;
    large.uniform_(1, 2);
    large.fill_(3);
    EXPECT_EQ(at::ones({8}).sum().item<double>(), 8);
    EXPECT_EQ(large.sum().item<double>(), 0);
    std::thread([&] { large.fill_(1); }).join();
    EXPECT_EQ(large.sum().item<double>(), 1 << 16);
  }
  large.normal_(5, 0);
  EXPECT_EQ(large[7].item<double>(), 5);
  EXPECT_EQ(at::zeros({1 << 16}).sum().item<double>(), 0);
}

}  // namespace
}  // namespace bellows::parallel::testing::zero
