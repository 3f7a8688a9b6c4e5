// Compiled functions of models whose embeddings are integers, against eager calls.
#include <gmock/gmock.h>

#include "bellows/compile.h"
#include "bellows/quant/quantize.h"
#include "tests/compile/onednn_support.h"
#include "tests/quant/networks.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const quant::Options int4{.method = quant::Method::weight_only, .weights = quant::group_scheme(4, 16)};

/// Sum of the embeddings of a text model, whose layers are quantized together with it.
Model embeddings_of(const quant::samples::Text& net) {
  const auto module = net.ptr();
  Model model("net", module, [module](const at::Tensor& ids) { return module->embed(ids); });
  model.eval();
  return model;
}

TEST(QuantizedEmbeddings, AreBitIdenticalInCompiledFunctions) {
  for (const quant::Options& options : {quant::Options{}, int4,
                                        quant::Options{.method = quant::Method::weight_only,
                                        .weights = {.granularity = quant::Granularity::channel}}}) {
    const quant::Quantized made =
        quant::quantize(embeddings_of(quant::samples::Text()), options, quant::samples::texts());
    EXPECT_EQ(made.report.quantized(), 3);
    const torch::NoGradGuard no_gradients;
    const auto compiled =
        compile([&](const at::Tensor& ids) { return made.model.forward(ids); }, {.frozen = made.model, .always = true});
    for (const int64_t length : {11, 11, 11, 16, 16, 1, 11, 5}) {
      const at::Tensor ids = torch::randint(0, 50, {3, length});
      EXPECT_TRUE(compiled(ids).equal(made.model.forward(ids))) << options.weights.to_text() << ", " << length;
    }
    EXPECT_THAT(compiled.explain().to_text(), HasSubstr("aten::embedding"));
    EXPECT_THAT(compiled.explain().to_text(), Not(HasSubstr("aten::mul")));
  }
}

TEST(QuantizedEmbeddings, TiedWeightsInCompiledFunctions) {
  for (const quant::Options& options : {quant::Options{}, quant::Options{.method = quant::Method::dynamic}, int4}) {
    const quant::Quantized made =
        quant::quantize(quant::samples::model_of(quant::samples::Text(true)), options, quant::samples::texts());
    const torch::NoGradGuard no_gradients;
    const auto compiled =
        compile([&](const at::Tensor& ids) { return made.model.forward(ids); }, {.frozen = made.model, .always = true});
    for (int i = 0; i < 3; ++i) {
      const at::Tensor ids = torch::randint(0, 50, {3, 9}), eager = made.model.forward(ids);
      // An activation close to a half may be rounded to the other side.
      EXPECT_LT((compiled(ids) - eager).abs().max().item<float>(), 0.02 * eager.abs().max().item<float>())
          << name_of(options.method);
    }
  }
}

TEST(QuantizedEmbeddings, RowsOutOfRangeInCompiledFunctions) {
  const quant::Quantized made = quant::quantize(embeddings_of(quant::samples::Text()), int4, quant::samples::texts());
  const torch::NoGradGuard no_gradients;
  const auto compiled =
      compile([&](const at::Tensor& ids) { return made.model.forward(ids); }, {.frozen = made.model, .always = true});
  for (int i = 0; i < 3; ++i) compiled(torch::randint(0, 50, {3, 9}));
  EXPECT_THROW(compiled(torch::full({3, 9}, 50)), c10::IndexError);
  const at::Tensor ids = torch::randint(0, 50, {3, 9});
  EXPECT_TRUE(compiled(ids).equal(made.model.forward(ids)));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
