#include "bellows/inspect/op_counter.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "bellows/inspect/flops.h"
#include "bellows/inspect/module_map.h"
#include "bellows/models/mlp.h"
#include "bellows/models/resnet.h"
#include "bellows/system/file.h"
#include "small_models.h"

namespace bellows::inspect {
namespace {

nlohmann::json golden(const std::string& name) {
  const std::string path = BELLOWS_SOURCE_DIR "/tests/goldens/inspect/flops.json";
  return nlohmann::json::parse(read_text_file(path))["cases"].at(name);
}

std::map<std::string, int64_t> flops_by_operator(const OpReport& report) {
  std::map<std::string, int64_t> result;
  for (const OpRow& row : report.rows) {
    if (row.count.flops) result[row.op] += row.count.flops;
  }
  return result;
}

void expect_golden_operators(const std::string& name, const OpReport& report) {
  const auto expected = golden(name);
  EXPECT_EQ(report.total().flops, expected["total"].get<int64_t>()) << name;
  EXPECT_EQ(flops_by_operator(report), (expected["ops"].get<std::map<std::string, int64_t>>())) << name;
}

/// In backward Python's counter gives a branch the operators of the branches beside it, too: `skip` matches these
/// modules.
void expect_golden_modules(const std::string& name, const OpReport& report, const std::string& skip = "nothing") {
  std::map<std::string, int64_t> ours;
  for (const OpRow& row : report.by_module()) ours[row.module] = row.count.flops;
  const auto expected = golden(name)["modules"].get<std::map<std::string, int64_t>>();
  ASSERT_FALSE(expected.empty());
  for (const auto& [path, flops] : expected) {
    if (!std::regex_search(path, std::regex(skip))) {
      EXPECT_EQ(ours[path], flops) << name << ", module " << path;
    }
  }
}

OpCount of_operator(const OpReport& report, const std::string& op) {
  OpCount sum;
  for (const OpRow& row : report.rows) {
    if (row.op == op) sum += row.count;
  }
  return sum;
}

TEST(OpCounter, ResNet18EqualsPythonsCounter) {
  const Model model = models::resnet18({.num_classes = 10});
  const OpReport report = count_ops(model, [&] { model.forward(at::ones({2, 3, 64, 64})).sum().backward(); });
  expect_golden_operators("resnet18", report);
  expect_golden_modules("resnet18", report, "downsample");
  for (const OpRow& row : report.rows) {
    const bool convolves = row.op.starts_with("aten::convolution");
    EXPECT_EQ(convolves && row.backward, row.op == "aten::convolution_backward") << row.op;
  }
}

TEST(OpCounter, ResNet18InInferenceModeEqualsPythonsCounter) {
  const Model model = models::resnet18({.num_classes = 10});
  model.eval();
  const OpReport report = count_ops(model, [&] {
    const c10::InferenceMode inference;
    model.forward(at::ones({2, 3, 64, 64}));
  });
  expect_golden_operators("resnet18_inference", report);
  expect_golden_modules("resnet18_inference", report);
}

TEST(OpCounter, MlpEqualsPythonsCounter) {
  const Model model = models::mlp({.in_features = 64, .hidden = {128, 128}, .num_classes = 10});
  expect_golden_operators("mlp", count_ops(model, [&] { model.forward(at::ones({32, 64})).sum().backward(); }));
}

TEST(OpCounter, EncoderEqualsPythonsCounterByModuleToo) {
  const Model model = test::small_encoder();
  const OpReport report = count_ops(model, [&] { model.forward(at::ones({2, 16, 32})).sum().backward(); });
  expect_golden_operators("encoder", report);
  expect_golden_modules("encoder", report,
                        "attention.[kv]$");  // products of activations lie between the projections around them
}

TEST(OpCounter, EncoderInInferenceModeEqualsPythonsCounter) {
  const Model model = test::small_encoder();
  const OpReport report = count_ops(model, [&] {
    const c10::InferenceMode inference;
    model.forward(at::ones({2, 16, 32}));
  });
  expect_golden_operators("encoder_inference", report);
  expect_golden_modules("encoder_inference", report);
}

TEST(OpCounter, ConvolutionsOfAllKindsEqualPythonsCounter) {
  const auto leaf = [](at::IntArrayRef sizes) { return at::ones(sizes).requires_grad_(); };
  const auto count = [&](const std::string& name, at::IntArrayRef x_sizes, at::IntArrayRef w_sizes,
                         const auto& convolve) {
    OpCounter counter;
    convolve(leaf(x_sizes), leaf(w_sizes)).sum().backward();
    expect_golden_operators(name, counter.report());
  };
  using at::Tensor;
  count("conv1d", {2, 4, 17}, {6, 4, 3}, [](const Tensor& x, const Tensor& w) { return at::conv1d(x, w, {}, 2, 1); });
  count("conv2d", {2, 4, 15, 9}, {8, 2, 3, 3}, [](const Tensor& x, const Tensor& w) {
    return at::conv2d(x, w, {}, 1, at::IntArrayRef{0, 0}, 2, 2);
  });
  count("conv3d", {1, 3, 5, 6, 7}, {4, 3, 2, 2, 2}, [](const Tensor& x, const Tensor& w) { return at::conv3d(x, w); });
  count("conv_transpose2d", {2, 4, 7, 5}, {4, 3, 3, 3},
        [](const Tensor& x, const Tensor& w) { return at::conv_transpose2d(x, w, {}, 2, 1, 1); });
}

TEST(OpCounter, FusedAttentionOnTheCpuCounts) {
  const int64_t heads = 2 * 4, length = 16, width = 8, product = 2 * heads * length * length * width;
  const at::Tensor x = at::ones({2, 4, length, width}).requires_grad_();
  OpCounter counter;
  at::scaled_dot_product_attention(x, x, x).sum().backward();
  const auto flops = flops_by_operator(counter.report());
  EXPECT_EQ(flops.at("aten::_scaled_dot_product_flash_attention_for_cpu"), 2 * product);
  EXPECT_EQ(flops.at("aten::_scaled_dot_product_flash_attention_for_cpu_backward"), 5 * product);
}

TEST(OpCounter, CompositesDoNotCountTwice) {
  OpCounter counter;
  at::linear(at::ones({8, 4}), at::ones({3, 4}), at::ones({3}));
  const OpReport report = counter.report();
  EXPECT_EQ(report.total().flops, 2 * 8 * 4 * 3);
  EXPECT_EQ(of_operator(report, "aten::addmm").calls, 1);
  EXPECT_EQ(of_operator(report, "aten::linear").calls, 0);
}

TEST(OpCounter, AutocastCountsTheCastsAndTheProductOnce) {
  const at::Tensor x = at::ones({8, 4}), w = at::ones({4, 3});
  OpCounter counter;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::mm(x, w);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  const OpReport report = counter.report();
  EXPECT_EQ(report.total().flops, 2 * 8 * 4 * 3);
  EXPECT_EQ(of_operator(report, "aten::mm").calls, 1);
  EXPECT_EQ(of_operator(report, "aten::mm").bytes, 2 * (8 * 4 + 4 * 3 + 8 * 3)) << "in bfloat16";
  EXPECT_EQ(of_operator(report, "aten::_to_copy").calls, 2);
}

TEST(OpCounter, BytesAreWhatIsReadAndWritten) {
  const at::Tensor a = at::ones({100}), b = at::ones({100});
  OpCounter counter;
  at::add(a, b);
  EXPECT_EQ(counter.report().total().bytes, 3 * 400);
  counter.reset();
  a.view({10, 10}).t();
  at::empty({1000});
  EXPECT_EQ(counter.report().total().bytes, 0);
  EXPECT_GE(counter.report().total().calls, 3);
  counter.reset();
  at::add(a, at::ones({1}).expand({100}));
  EXPECT_EQ(of_operator(counter.report(), "aten::add").bytes, 400 + 4 + 400) << "an expanded tensor is read once";
}

TEST(OpCounter, CastWeightsStayWithTheirModule) {
  const at::Tensor weight = at::ones({3, 4});
  const Model model = test::model_of({{"head.weight", weight}});
  const OpReport report = count_ops(model, [&] {
    const at::Tensor cast = weight.to(at::kDouble);
    at::mm(at::ones({8, 4}, at::kDouble), cast.t());
  });
  std::vector<std::string> modules;
  for (const OpRow& row : report.rows) {
    if (row.op == "aten::mm") modules.push_back(row.module);
  }
  EXPECT_THAT(modules, testing::ElementsAre("head"));
}

TEST(OpCounter, ModuleScopeNamesOperatorsWithoutParameters) {
  const at::Tensor weight = at::ones({4, 4}), x = at::ones({2, 4}).requires_grad_();
  const Model model = test::model_of({{"a.fc.weight", weight}, {"b.fc.weight", weight.clone()}});
  const OpReport report = count_ops(model, [&] {
    const ModuleScope scope("a.attention");
    at::exp(x).sum().backward();
  });
  std::map<std::pair<std::string, bool>, std::string> module;
  for (const OpRow& row : report.rows) module[{row.op, row.backward}] = row.module;
  EXPECT_EQ((module[{"aten::exp", false}]), "a.attention");
  EXPECT_EQ((module[{"aten::mul", true}]), "a.attention") << "backward belongs to the forward operator's module";
}

TEST(OpCounter, OperatorThatThrowsLeavesTheCounterInOrder) {
  OpCounter counter;
  EXPECT_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})), c10::Error);
  at::mm(at::ones({2, 3}), at::ones({3, 2}));
  EXPECT_EQ(counter.report().total().flops, 2 * 2 * 3 * 2);
}

TEST(OpCounter, NothingIsCountedAfterItsEnd) {
  auto outer = std::make_unique<OpCounter>();
  { const OpCounter inner; }
  at::relu(at::ones({3}));
  const OpReport report = outer->report();
  EXPECT_EQ(of_operator(report, "aten::relu").calls, 1);
  outer.reset();
  at::relu(at::ones({3}));
  EXPECT_EQ(of_operator(report, "aten::relu").calls, 1);
}

TEST(OpCounter, OwnFormula) {
  count_ops(test::model_of({}), [] { at::cumsum(at::ones({17}), 0); });  // stores what is known of the operator
  register_flop_formula("aten::cumsum", [](c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue>) {
    return inputs[0].toTensor().numel();
  });
  EXPECT_NE(flop_formula("aten::cumsum"), nullptr);
  EXPECT_EQ(flop_formula("aten::no_such_operator"), nullptr);
  OpCounter counter;
  at::cumsum(at::ones({17}), 0);
  EXPECT_EQ(counter.report().total().flops, 17);
}

TEST(OpReport, TextFits80ColumnsAndJsonHoldsTheSameTotals) {
  const Model model = models::resnet18({.num_classes = 10});
  const OpReport report = count_ops(model, [&] { model.forward(at::ones({2, 3, 32, 32})).sum().backward(); });
  const std::string text = report.to_text();
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 80u) << text;
  EXPECT_THAT(text, testing::HasSubstr("aten::convolution_backward (b)"));
  EXPECT_THAT(text, testing::HasSubstr("    conv1"));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["total"]["flops"], report.total().flops);
  int64_t sum = 0;
  for (const auto& row : json["rows"]) sum += row["flops"].get<int64_t>();
  EXPECT_EQ(sum, report.total().flops);
  EXPECT_EQ(report.by_module(0).size(), 1u);
  EXPECT_EQ(report.by_module(0)[0].count.flops, report.total().flops);
}

}  // namespace
}  // namespace bellows::inspect
