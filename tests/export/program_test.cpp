// Compiled programs: results in the same and in another process, other sizes, damage, and wrong inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

#include "bellows/compile/onednn/onednn.h"
#include "bellows/export.h"
#include "bellows/export/artifact_file.h"
#include "bellows/io/bytes.h"
#include "bellows/models/registry.h"
#include "bellows/models/resnet.h"
#include "bellows/quant.h"
#include "bellows/system/file.h"
#include "tests/quant/networks.h"
#include "tests/support/errors.h"

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "bellows-" + name + ".program";
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

/// Registered models with all axes that they can vary.
class ProgramModels : public ::testing::TestWithParam<const char*> {};

TEST_P(ProgramModels, RunsWithOtherSizes) {
  const models::ModelEntry& entry = models::registry().at(GetParam());
  torch::manual_seed(1);
  const Model model = entry.make(10, entry.input_shape[0] > 0 ? entry.input_shape[0] : 3);
  model.eval();
  const bool sequence = entry.input == models::InputKind::tokens || entry.input == models::InputKind::series;
  const auto example = [&](int64_t batch, int64_t length) {
    return models::example_inputs(entry, batch, sequence ? length : 0);
  };
  DynamicAxes axes;
  const auto names = model.inputs();
  for (size_t i = 0; i < example(2, 12).size(); ++i) axes[names[i].name] = {{0, "batch"}};
  if (sequence) axes[names[0].name][1] = "sequence";
  const std::string path = temporary(GetParam());
  const ProgramReport report = export_program(model, example(2, 12), path, {.dynamic_axes = axes, .portable = false});
  EXPECT_GT(report.operators, 1);
  EXPECT_GT(report.packed_bytes, 0);
  const LoadedProgram program = load_program(path);
  EXPECT_EQ(program.inputs()[0].sizes[0], "batch");
  const torch::NoGradGuard no_gradients;
  for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{2, 12}, {1, 12}, {7, 5}, {3, 20}}) {
    SCOPED_TRACE(c10::str(batch, " x ", length));
    const auto inputs = example(batch, length);
    const auto found = program.run(inputs), expected = model.forward_all(inputs);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].sizes(), expected[i].sizes());
      EXPECT_LT(distance(found[i], expected[i]), 1e-3);
    }
  }
  std::filesystem::remove(path);
}

/// Registered models without convolutions.
class BatchInvariantModels : public ::testing::TestWithParam<const char*> {};

TEST_P(BatchInvariantModels, RowsDoNotDependOnTheBatch) {
  const models::ModelEntry& entry = models::registry().at(GetParam());
  torch::manual_seed(2);
  const Model model = entry.make(10, entry.input_shape[0] > 0 ? entry.input_shape[0] : 3);
  model.eval();
  const auto example = [&](int64_t batch) {
    return models::example_inputs(entry, batch, entry.input == models::InputKind::tokens ? 14 : 0);
  };
  DynamicAxes axes;
  const auto names = model.inputs();
  for (size_t i = 0; i < example(2).size(); ++i) axes[names[i].name] = {{0, "batch"}};
  const std::string path = temporary(std::string("rows-") + GetParam());
  export_program(model, example(2), path, {.dynamic_axes = axes, .portable = false});
  const LoadedProgram program = load_program(path, {.batch_invariant = true});
  const torch::NoGradGuard no_gradients;
  for (const int64_t batch : {2, 5, 8}) {
    const auto inputs = example(batch);
    const auto together = program.run(inputs), expected = model.forward_all(inputs);
    for (size_t i = 0; i < together.size(); ++i) EXPECT_LT(distance(together[i], expected[i]), 1e-3);
    for (int64_t row = 0; row < batch; ++row) {
      std::vector<at::Tensor> one;
      for (const at::Tensor& input : inputs) one.push_back(input.narrow(0, row, 1).clone());
      const auto alone = program.run(one);
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(alone[i].equal(together[i].narrow(0, row, 1)))
            << "row " << row << " of " << batch << ", output " << i;
      }
    }
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(All, ProgramModels, ::testing::Values("mlp", "digits_resnet", "tabular_mlp", "bert-20m"));
INSTANTIATE_TEST_SUITE_P(All, BatchInvariantModels, ::testing::Values("mlp", "tabular_mlp", "bert-20m"));

/// A program of the digits ResNet.
class ProgramFile : public ::testing::Test {
 public:
  ~ProgramFile() override { std::filesystem::remove(path_); }

 protected:
  ProgramFile() {
    torch::manual_seed(1);
    model_.eval();
    path_ = temporary("file");
    export_program(model_, {x_}, path_);
  }

  const Model model_ = models::digits_resnet();
  const at::Tensor x_ = torch::randn({4, 1, 8, 8});
  std::string path_;
};

/// Another process, without the model's code, without a compiler in PATH and without a kernel cache.
TEST_F(ProgramFile, RunsInAnotherProcessWithoutACompiler) {
  const std::string tensors = temporary("tensors"), cache = ::testing::TempDir() + "bellows-no-cache";
  torch::save(std::vector<at::Tensor>{x_, load_program(path_)(x_)}, tensors);
  const std::string command = "env PATH= BELLOWS_CACHE=" + cache + " " BELLOWS_RUN_PROGRAM " " + path_ + " " + tensors;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_FALSE(std::filesystem::exists(cache));
  std::filesystem::remove(tensors);
}

TEST_F(ProgramFile, UsesPackedWeightsAndStoredKernels) {
  const LoadedProgram program = load_program(path_);
  program(x_);
  EXPECT_THAT(program.explain(), AllOf(HasSubstr("onednn"), HasSubstr("0 groups run as operators")));
}

TEST_F(ProgramFile, CallsAreBitIdentical) {
  const LoadedProgram program = load_program(path_);
  const at::Tensor first = program(x_);
  program(torch::randn({9, 1, 8, 8}));
  EXPECT_TRUE(program(x_).equal(first));
  EXPECT_TRUE(load_program(path_)(x_).equal(first));
}

TEST_F(ProgramFile, TakesInputsInAnyLayout) {
  const LoadedProgram program = load_program(path_);
  const at::Tensor large = torch::randn({4, 1, 8, 16}), part = large.slice(3, 0, 16, 2);
  EXPECT_TRUE(program(part).equal(program(part.contiguous())));
  const at::Tensor tail = torch::randn({6, 1, 8, 8}).slice(0, 2);
  EXPECT_TRUE(program(tail).equal(program(tail.clone())));
  EXPECT_FALSE(program(x_.clone().requires_grad_()).requires_grad());
}

TEST_F(ProgramFile, WrongInputsAreErrors) {
  const LoadedProgram program = load_program(path_);
  EXPECT_THAT(message_of([&] {
                program(torch::randn({4, 1, 8, 9}));
              }),
              AllOf(HasSubstr("expected sizes [batch, 1, 8, 8], got [4, 1, 8, 9]"), HasSubstr("Axis 3 must be 8")));
  EXPECT_THAT(message_of([&] { program(torch::randn({8})); }), HasSubstr("expected sizes [batch, 1, 8, 8], got [8]"));
  EXPECT_THAT(message_of([&] { program(x_.to(at::kDouble)); }), HasSubstr("type Float, got Double"));
  EXPECT_THAT(message_of([&] { program(at::Tensor()); }), HasSubstr("undefined tensor"));
  EXPECT_THAT(message_of([&] { program(torch::randn({0, 1, 8, 8})); }), HasSubstr("\"batch\" is empty"));
  EXPECT_THAT(message_of([&] { program.run({}); }), HasSubstr("1 inputs, got 0"));
  EXPECT_NO_THROW(program(x_));
}

TEST_F(ProgramFile, DamageIsAnError) {
  const std::string bytes = read_text_file(path_);
  const std::string damaged = temporary("damaged");
  const at::Tensor expected = load_program(path_)(x_);
  std::vector<size_t> places{0, 8, 16, 24, 32, 50, bytes.size() - 1};
  const export_detail::ArtifactFile artifact(path_);
  for (const export_detail::ArtifactSection& section : artifact.sections()) {
    const std::string_view content = io::as_text(section.bytes);
    const size_t at = bytes.find(content);
    if (content.size() >= 16 && at != std::string::npos) places.push_back(at + content.size() / 2);
  }
  int errors = 0;
  for (const size_t place : places) {
    std::string changed = bytes;
    changed[place] = static_cast<char>(changed[place] ^ 0x10);
    write_text_file(damaged, changed);
    try {
      EXPECT_TRUE(load_program(damaged)(x_).equal(expected))
          << "byte " << place;  // a part that is not read, or padding
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(user_message(error), HasSubstr(damaged)) << "byte " << place;
      ++errors;
    }
  }
  EXPECT_GT(errors, static_cast<int>(places.size()) / 3);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{47}, size_t{1000}, bytes.size() / 2, bytes.size() - 64}) {
    write_text_file(damaged, bytes.substr(0, size));
    EXPECT_THROW(load_program(damaged), c10::ValueError) << size;
  }
  std::filesystem::remove(damaged);
}

TEST_F(ProgramFile, OtherFilesAreErrors) {
  EXPECT_THAT(message_of([] { load_program("/no/such/file.program"); }), HasSubstr("/no/such/file.program"));
  const std::string other = temporary("other");
  write_text_file(other, "PK\x03\x04 not a program");
  EXPECT_THAT(message_of([&] { load_program(other); }), HasSubstr("expected a program that `bellows export"));
  std::filesystem::remove(other);
}

TEST_F(ProgramFile, IsAModel) {
  const Model loaded = load_program(path_).model();
  EXPECT_EQ(loaded.inputs(), model_.inputs());
  EXPECT_EQ(loaded.outputs(), model_.outputs());
  EXPECT_LT(distance(loaded.forward(x_), model_.forward(x_).detach()), 1e-5);
  EXPECT_THAT(message_of([&] { loaded.train(); }), HasSubstr("cannot be trained"));
}

TEST(ExportProgram, ReturnsSeveralResultsAndInputs) {
  const at::Tensor weight = torch::randn({16, 4});
  const auto function = [&](const std::vector<at::Tensor>& x) {
    const at::Tensor y = x[0].matmul(weight).softmax(-1);
    return std::vector<at::Tensor>{y, y.sum(1), x[0], y.transpose(0, 1)};
  };
  const std::string path = temporary("results");
  export_program(function, {torch::randn({2, 5, 16})}, path,
                 {.output_names = {"y", "sum", "x", "turned"},
                  .dynamic_axes = DynamicAxes{{"input", {{0, "batch"}, {1, "tokens"}}}},
                  .weights = {{"weight", weight}}});
  const LoadedProgram program = load_program(path);
  EXPECT_EQ(program.outputs()[3].sizes, (std::vector<std::string>{"tokens", "batch", "4"}));
  const at::Tensor x = torch::randn({3, 9, 16});
  const auto found = program.run({&x, 1}), expected = function({x});
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-5)) << i;
  std::filesystem::remove(path);
}

/// On Intel processors, MKL multiplies such matrices. Its packed matrices are valid at one address only.
TEST(ExportProgram, LargeMatmulsAreNotStoredWithAddresses) {
  torch::manual_seed(8);
  const at::Tensor weight = torch::randn({640, 512}), x = torch::randn({128, 512});
  const auto function = [&](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{at::linear(in[0], weight)};
  };
  const std::string path = temporary("large-matmul");
  export_program(function, {x}, path, {.dynamic_axes = DynamicAxes{}, .weights = {{"weight", weight}}});
  EXPECT_LT(distance(load_program(path)(x), at::linear(x, weight)), 1e-5);
  std::filesystem::remove(path);
}

TEST(ExportProgram, RefusesWhatItCannotExport) {
  const std::string path = temporary("refused");
  const auto reads = [](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0].sum().item<float>() > 0 ? x[0] + 1 : x[0] - 1};
  };
  EXPECT_THAT(message_of([&] {
                export_program(reads, {torch::ones({2, 3})}, path);
              }),
              HasSubstr("reads values on the host"));
  int64_t calls = 0;
  const auto changes = [&](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0] + at::full({}, static_cast<double>(++calls))};
  };
  EXPECT_NE(message_of([&] { export_program(changes, {torch::ones({2, 3})}, path); }), "no error");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ExportProgram, Int8ModelsStayInt8) {
  torch::manual_seed(1);
  const Model model = models::digits_resnet();
  model.eval();
  const at::Tensor x = torch::randn({4, 1, 8, 8});
  const std::vector<std::vector<at::Tensor>> calibration{{torch::randn({32, 1, 8, 8})}};
  const quant::Quantized quantized = quant::quantize(model, quant::Options{}, calibration);
  const std::string path = temporary("int8");
  export_program(quantized.model, {x}, path, {.portable = false});
  const LoadedProgram program = load_program(path);
  const torch::NoGradGuard no_gradients;
  EXPECT_LT(distance(program(x), quantized.model.forward(x)), 0.02);
  const bool exact = compile_detail::adds_int8_exactly();  // otherwise, convolutions run in fp32
  EXPECT_THAT(program.explain(), HasSubstr(exact ? "int8 convolution" : "bellows::quantized_convolution"));
  std::filesystem::remove(path);
}

TEST(ExportProgram, EmbeddingsStayIntegers) {
  const at::Tensor ids = quant::samples::texts()[0][0];
  for (const bool tied : {false, true}) {
    const quant::Options options{.method = quant::Method::weight_only, .weights = quant::group_scheme(4, 16)};
    const quant::Quantized quantized =
        quant::quantize(quant::samples::model_of(quant::samples::Text(tied, 512)), options, quant::samples::texts());
    const std::string path = temporary("embeddings");
    ASSERT_EQ(quantized.report.quantized(), tied ? 4 : 5);
    export_program(quantized.model, {ids}, path, {.portable = false});
    const LoadedProgram program = load_program(path);
    const torch::NoGradGuard no_gradients;
    EXPECT_LT(distance(program(ids), quantized.model.forward(ids)), 1e-4) << tied;
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace bellows
