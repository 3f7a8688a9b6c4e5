#include "model_files.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/csrc/jit/api/module.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "bellows/export.h"
#include "tests/support/errors.h"

namespace bellows::runtime {

namespace {

using ::testing::HasSubstr;

NamedTensors weights() {
  const auto formula = [](at::IntArrayRef sizes, double factor) {
    return at::arange(c10::multiply_integers(sizes), at::kDouble).mul(factor).sin().to(at::kFloat).view(sizes);
  };
  return {{"w1", formula({16, 8}, 0.7)},
          {"b1", formula({16}, 0.3)},
          {"w2", formula({4, 16}, 1.1)},
          {"b2", formula({4}, 0.9)}};
}

std::vector<at::Tensor> net(const NamedTensors& named, const at::Tensor& x) {
  const at::Tensor hidden = at::linear(x, named[0].second, named[1].second).relu();
  const at::Tensor logits = at::linear(hidden, named[2].second, named[3].second);
  return {at::softmax(logits, -1), logits.mean(-1)};
}

void expect_equal(const std::vector<at::Tensor>& actual, const at::Tensor& x) {
  const std::vector<at::Tensor> expected = test_model(x);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].sizes(), expected[i].sizes()) << "output " << i;
    EXPECT_LT(actual[i].sub(expected[i]).abs().max().item<double>(), 1e-5) << "output " << i;
  }
}

std::vector<at::Tensor> run_one(InferenceModel& model, const at::Tensor& x) {
  return model.run(std::vector<at::Tensor>{x});
}

void expect_statement(const InferenceModel& model, const Statement& statement) {
  ASSERT_EQ(model.inputs().size(), 1u);
  ASSERT_EQ(model.outputs().size(), 2u);
  const c10::ScalarType unknown = c10::ScalarType::Undefined;
  EXPECT_EQ(model.inputs()[0].dtype, statement.types ? at::kFloat : unknown);
  EXPECT_EQ(model.inputs()[0].sizes, statement.types ? std::vector<int64_t>({-1, 8}) : std::vector<int64_t>());
  EXPECT_EQ(model.outputs()[0].dtype, statement.output_types ? at::kFloat : unknown);
  EXPECT_FALSE(model.inputs()[0].name.empty());
}

void expect_results(InferenceModel& model, int64_t smallest) {
  for (const int64_t batch : {smallest, int64_t{3}, int64_t{7}})
    expect_equal(run_one(model, test_input(batch)), test_input(batch));
  // Results are new ordinary tensors, which no later call changes.
  const std::vector<at::Tensor> first = run_one(model, test_input(3));
  const at::Tensor copy = first[0].clone();
  run_one(model, test_input(3).mul(2));
  EXPECT_TRUE(first[0].equal(copy));
  EXPECT_FALSE(first[0].is_inference());
  EXPECT_FALSE(first[0].requires_grad());
  EXPECT_NO_THROW(first[0].add_(1));
}

void expect_layouts(InferenceModel& model) {
  const at::Tensor x = test_input(5);
  const at::Tensor column_major = x.t().contiguous().t();
  const at::Tensor shifted = at::cat({at::zeros({1}), x.flatten()}).slice(0, 1).view({5, 8});
  const at::Tensor with_gradient = x.clone().requires_grad_();
  for (const at::Tensor& one : {column_major, shifted, with_gradient}) expect_equal(run_one(model, one), x);
}

void expect_concurrency(InferenceModel& model) {
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&model, thread] {
      for (int64_t i = 0; i < 20; ++i)
        expect_equal(run_one(model, test_input(2 + (thread + i) % 5)), test_input(2 + (thread + i) % 5));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::future<std::vector<at::Tensor>>> futures;
  for (int64_t batch = 2; batch < 12; ++batch) futures.push_back(model.run_async({test_input(batch)}));
  for (int64_t batch = 2; batch < 12; ++batch)
    expect_equal(futures[static_cast<size_t>(batch - 2)].get(), test_input(batch));
}

void expect_wrong_inputs_throw(InferenceModel& model, const Statement& statement) {
  const at::Tensor x = test_input(3);
  EXPECT_THROW(model.run({}), c10::ValueError);
  EXPECT_THAT(message_of([&] { model.run(std::vector<at::Tensor>{x, x}); }), HasSubstr("expected 1 input, got 2"));
  EXPECT_THROW(run_one(model, at::Tensor()), c10::ValueError);
  const auto fails = [&](const at::Tensor& wrong, const std::string& text) {
    EXPECT_THROW(run_one(model, wrong), c10::ValueError) << wrong.sizes() << wrong.scalar_type();
    if (!statement.types) return;
    EXPECT_THAT(message_of([&] { run_one(model, wrong); }), HasSubstr(text));
  };
  fails(x.to(at::kDouble), "expected dtype Float, got Double");
  fails(at::randn({3, 9}), "expected sizes [any, 8], got [3, 9]");
  fails(at::randn({2, 3, 9}), "expected sizes [any, 8], got [2, 3, 9]");
  fails(at::empty({3, 8}, at::kMeta), "expected a dense tensor on the CPU");
  // Asynchronous calls throw at once or in the future.
  EXPECT_THROW(model.run_async({at::randn({3, 9})}).get(), c10::ValueError);
  expect_equal(run_one(model, x), x);
}

void expect_threads(const InferenceBackend& backend, const std::string& file) {
  const int before = at::get_num_threads();
  for (const int64_t threads : {1, 2}) {
    const auto model = backend.load(file, {.threads = threads});
    expect_equal(run_one(*model, test_input(4)), test_input(4));
    expect_equal(model->run_async({test_input(4)}).get(), test_input(4));
  }
  EXPECT_EQ(at::get_num_threads(), before);
  EXPECT_THAT(message_of([&] { backend.load(file, {.threads = -1}); }),
              HasSubstr("`threads` must be at least 0, got -1"));
}

void expect_wrong_files_throw(const InferenceBackend& backend, const TestFolder& folder) {
  EXPECT_FALSE(backend.accepts(folder / "none"));
  EXPECT_THAT(message_of([&] { backend.load(folder / "none"); }), HasSubstr("there is no such file"));
  std::ofstream(folder / "text.txt") << "no model";
  EXPECT_FALSE(backend.accepts(folder / "text.txt"));
  EXPECT_THROW(backend.load(folder / "text.txt"), c10::ValueError);
  std::ofstream(folder / "empty").flush();
  EXPECT_THROW(backend.load(folder / "empty"), c10::ValueError);
  EXPECT_THROW(backend.load(folder / "."), c10::ValueError);
}

}  // namespace

TestFolder::TestFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "bellows-runtime-XXXXXX").string();
  TORCH_CHECK(mkdtemp(name.data()), "mkdtemp");
  path_ = name;
}
TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<at::Tensor> test_model(const at::Tensor& x) {
  const at::NoGradGuard no_gradients;
  return net(weights(), x);
}
at::Tensor test_input(int64_t batch) {
  return at::arange(batch * 8, at::kDouble).mul(0.37).cos().to(at::kFloat).view({batch, 8});
}

void write_script(const std::string& path) {
  torch::jit::Module module("Net");
  for (const auto& [name, tensor] : weights()) module.register_parameter(name, tensor, false);
  module.define(R"(
def forward(self, x):
    hidden = torch.relu(torch.linear(x, self.w1, self.b1))
    logits = torch.linear(hidden, self.w2, self.b2)
    return torch.softmax(logits, -1), torch.mean(logits, [-1])
)");
  module.save(path);
}

void write_program(const std::string& path) {
  const NamedTensors named = weights();
  export_program([named](const std::vector<at::Tensor>& x) { return net(named, x[0]); }, {test_input(3)}, path,
                 {.input_names = {"x"}, .output_names = {"y", "mean"}, .weights = named});
}

void write_onnx(const std::string& path) {
  const NamedTensors named = weights();
  const OnnxFunction function = [named](const std::vector<at::Tensor>& x) { return net(named, x[0]); };
  export_onnx(function, {test_input(3)}, path, {.input_names = {"x"}, .output_names = {"y", "mean"}, .weights = named});
}

void expect_contract(const InferenceBackend& backend, const std::string& file, const Statement& statement) {
  SCOPED_TRACE(backend.name());
  ASSERT_EQ(backend.missing(), "");
  EXPECT_FALSE(backend.version().empty());
  EXPECT_TRUE(backend.accepts(file));
  const auto model = backend.load(file);
  expect_statement(*model, statement);
  expect_results(*model, statement.smallest_batch);
  expect_layouts(*model);
  expect_concurrency(*model);
  expect_wrong_inputs_throw(*model, statement);
  expect_threads(backend, file);
  const TestFolder folder;
  expect_wrong_files_throw(backend, folder);
}

void expect_truncated_files_throw(const InferenceBackend& backend, const std::string& file) {
  const TestFolder folder;
  std::ifstream whole(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(whole), {}};
  const std::string cut = folder / ("cut" + std::filesystem::path(file).extension().string());
  for (size_t i = 0; i < 50; ++i) {
    const size_t length = bytes.size() * i / 50;
    std::ofstream(cut, std::ios::binary) << bytes.substr(0, length);
    EXPECT_THROW(backend.load(cut), c10::ValueError) << length << " of " << bytes.size() << " bytes";
  }
}

}  // namespace bellows::runtime
