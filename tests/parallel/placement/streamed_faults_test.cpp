#include <gmock/gmock.h>

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "bellows/core/grad_mode.h"
#include "bellows/tap/context.h"
#include "bellows/tap/deferral.h"
#include "tests/parallel/placement/streamed_support.h"

// Files that do not fit, files that change, and uses that streamed weights do not support.
namespace bellows::parallel::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t fault_width = 64, fault_layers = 6;

/// A model with a file, from which all but two layers are streamed.
struct FaultyStack {
  TemporaryFolder folder;
  std::string file = folder / "stack.safetensors";
  Model model = linear_stack(fault_layers, fault_width);

  FaultyStack() { save_weights(model, file); }
  StreamedWeights streamed(int64_t layers = 3) const {
    return StreamedWeights(model, {.file = file, .memory_bytes = layers * layer_bytes(fault_width)});
  }
  std::string problem() const {
    return message_of([&] { streamed(); });
  }
};

at::Tensor fault_input() {
  return at::ones({1, fault_width});
}

TEST(StreamedFaults, FilesThatDoNotFitNameTheTensors) {
  FaultyStack stack;
  NamedTensors tensors = io::load_safetensors(stack.file);
  for (auto& [name, tensor] : tensors) {
    if (name == "2.weight") name = "2.weigth";
    if (name == "3.bias") tensor = at::zeros({fault_width + 1});
    if (name == "4.weight") tensor = tensor.to(at::kInt);
  }
  io::save_safetensors(stack.file, tensors);
  EXPECT_THAT(stack.problem(), AllOf(HasSubstr("\"2.weight\" is missing."),
                                     HasSubstr("\"3.bias\" has sizes [65], but the model has [64]."),
                                     HasSubstr("\"4.weight\" has dtype I32, but the model has Float.")));
}

TEST(StreamedFaults, DamagedFilesAreReported) {
  FaultyStack stack;
  const auto size = fs::file_size(stack.file);
  fs::resize_file(stack.file, size - 100);
  EXPECT_THAT(stack.problem(), HasSubstr(stack.file));
  fs::resize_file(stack.file, 5);
  EXPECT_THAT(stack.problem(), HasSubstr(stack.file));
  std::ofstream(stack.file) << std::string(200, 'x');
  EXPECT_THAT(stack.problem(), HasSubstr(stack.file));
  fs::remove(stack.file);
  EXPECT_THAT(stack.problem(), HasSubstr("No such file"));
}

TEST(StreamedFaults, BudgetsBelowOneModuleStateTheMinimum) {
  const FaultyStack stack;
  EXPECT_THAT(message_of([&] {
                StreamedWeights(stack.model, {.file = stack.file, .memory_bytes = layer_bytes(fault_width) - 1});
              }),
              HasSubstr(c10::str("must be at least ", layer_bytes(fault_width), " bytes")));
}

TEST(StreamedFaults, AFileThatChangesIsReportedByTheCall) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed();
  const no_grad no_graph;
  weights.model().forward(fault_input());
  fs::last_write_time(stack.file, fs::last_write_time(stack.file) + std::chrono::seconds(5));
  EXPECT_THAT(
      message_of([&] {
        weights.model().forward(fault_input());
        weights.model().forward(fault_input());
      }),
      AllOf(HasSubstr("the file changed while its weights were in use"), HasSubstr(".weight\" cannot be read")));
}

TEST(StreamedFaults, ATruncatedFileIsReportedAndNoBusErrorOccurs) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed();
  fs::resize_file(stack.file, fs::file_size(stack.file) / 8);
  const no_grad no_graph;
  for (int attempt = 0; attempt < 2; ++attempt)
    EXPECT_THAT(message_of([&] { weights.model().forward(fault_input()); }), HasSubstr("the file changed"));
}

TEST(StreamedFaults, AReplacedFileKeepsServing) {
  const FaultyStack stack;
  const no_grad no_graph;
  const at::Tensor expected = stack.model.forward(fault_input());
  const StreamedWeights weights = stack.streamed();
  save_weights(linear_stack(1, 16), stack.file);  // the writer renames a complete file
  EXPECT_TRUE(at::equal(weights.model().forward(fault_input()), expected)) << "from the old file, which is still open";
}

TEST(StreamedFaults, WritesAreRefused) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed(2);
  const StreamedWeights::Guard guard(weights);
  const no_grad no_graph;
  const at::Tensor weight = stack.model.named_parameters()[4].second;
  EXPECT_THAT(message_of([&] { weight.add_(1); }), AllOf(HasSubstr("aten::add_"), HasSubstr("module \"2\"")));
  EXPECT_THAT(message_of([&] { at::add_out(const_cast<at::Tensor&>(weight), weight, weight); }),
              HasSubstr("writes to a weight"));
}

TEST(StreamedFaults, TrainingModeIsRefused) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed();
  stack.model.train();
  EXPECT_THAT(message_of([&] { weights.model().forward(fault_input()); }),
              AllOf(HasSubstr("is in training mode"), HasSubstr("model.eval()")));
  EXPECT_THAT(message_of([&] { StreamedWeights::Guard guard(weights); }), HasSubstr("is in training mode"));
  stack.model.eval();
  const inference_mode no_graph;
  EXPECT_EQ(weights.model().forward(fault_input()).size(1), fault_width);
}

TEST(StreamedFaults, GradientsAreRefused) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed(2);
  EXPECT_THAT(message_of([&] { weights.model().forward(fault_input()); }),
              AllOf(HasSubstr("while gradients are enabled"), HasSubstr("c10::NoGradGuard")));
  for (const at::Tensor& parameter : stack.model.parameters()) at::Tensor(parameter).set_requires_grad(false);
  EXPECT_EQ(weights.model().forward(fault_input()).size(1), fault_width) << "frozen weights need no guard";
}

TEST(StreamedFaults, MovingAndCastingAreRefused) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed();
  EXPECT_THAT(message_of([&] { weights.model().to(at::kBFloat16); }), HasSubstr("cannot be cast to BFloat16"));
  EXPECT_THAT(message_of([&] { weights.model().to(c10::Device("cpu")); }), HasSubstr("cannot be moved to cpu"));
}

TEST(StreamedFaults, OneOperatorNeedsTooMuch) {
  FaultyStack stack;
  const StreamedWeights weights = stack.streamed(1);
  const no_grad no_graph;
  const StreamedWeights::Guard guard(weights);
  const NamedTensors parameters = stack.model.named_parameters();
  EXPECT_THAT(message_of([&] {
                at::cat({parameters[0].second, parameters[2].second});
              }),
              AllOf(HasSubstr("modules \"0\", \"1\""), HasSubstr("Increase the budget by at least")));
  EXPECT_EQ(stack.model.forward(fault_input()).size(1), fault_width) << "the next call works";
}

TEST(StreamedFaults, OtherThreadsOfTheModelAreRefused) {
  const FaultyStack stack;
  const StreamedWeights weights = stack.streamed(2);
  const no_grad no_graph;
  const StreamedWeights::Guard guard(weights);
  std::string message;
  const tap::Context context = tap::Context::capture();
  std::thread([&] {
    const tap::ContextGuard carried(context);
    message = message_of([&] { stack.model.forward(fault_input()); });
  }).join();
  EXPECT_THAT(message, HasSubstr("can be used by one thread at a time"));
}

TEST(StreamedFaults, MapsOfOtherModelsAreRefused) {
  const FaultyStack stack;
  const auto with_map = [&](const DeviceMap& map) {
    return message_of([&] { StreamedWeights(stack.model, {.file = stack.file, .device_map = map}); });
  };
  const int64_t plenty = int64_t{1} << 30;
  EXPECT_THAT(with_map(infer_device_map(linear_stack(fault_layers - 1, fault_width), {.device_bytes = plenty})),
              HasSubstr("the device map does not place parameter \"5.weight\""));
  EXPECT_THAT(with_map(infer_device_map(linear_stack(fault_layers + 1, fault_width), {.device_bytes = plenty})),
              HasSubstr("has no such parameter"));
}

TEST(StreamedFaults, SharedMemoryIsRefused) {
  const TemporaryFolder folder;
  struct Shared final : torch::nn::Module {
    Shared() {
      const at::Tensor both = at::rand({8, 4});
      first = register_parameter("first", both.narrow(0, 0, 4));
      second = register_parameter("second", both.narrow(0, 4, 4));
      eval();
    }
    at::Tensor forward(const at::Tensor& x) { return at::mm(at::mm(x, first), second); }
    at::Tensor first, second;
  };
  const Model model = Model::of(std::make_shared<Shared>());
  save_weights(model, folder / "shared.safetensors");
  EXPECT_THAT(
      message_of([&] { StreamedWeights(model, {.file = folder / "shared.safetensors", .memory_bytes = 1000}); }),
      HasSubstr("\"first\" and \"second\" share memory"));
}

}  // namespace
}  // namespace bellows::parallel::testing
