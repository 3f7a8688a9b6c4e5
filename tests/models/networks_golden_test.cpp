#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/gpt.h"
#include "bellows/models/unet.h"
#include "tests/models/golden.h"
#include "tests/models/small_models.h"

namespace bellows::models {

namespace {

UNetOptions tiny_unet(bool bilinear) {
  return {.num_classes = 2, .in_channels = 3, .channels = 4, .depth = 2, .bilinear = bilinear};
}

EncoderDecoderOptions tiny_series() {
  return {.in_features = 5,
          .d_model = 8,
          .nhead = 2,
          .num_encoder_layers = 2,
          .num_decoder_layers = 1,
          .dim_feedforward = 12};
}

/// The models of the golden's cases; `fused` where there is a choice.
std::map<std::string, Model> golden_models(bool fused) {
  std::map<std::string, Model> models;
  for (const auto& [name, head] : {std::pair("classifier", TextHead::classifier),
                                   {"masked_lm", TextHead::masked_lm},
                                   {"hidden", TextHead::hidden_states},
                                   {"pooled", TextHead::pooled}}) {
    BertOptions options = small_bert(head);
    options.fused = fused;
    models.emplace(c10::str("bert_", name), bert(options));
    DistilBertOptions distil = small_distilbert(head);
    distil.fused = fused;
    if (head == TextHead::classifier || head == TextHead::masked_lm)
      models.emplace(c10::str("distilbert_", name), distilbert(distil));
  }
  GptOptions gpt_options = small_gpt();
  gpt_options.fused = fused;
  models.emplace("gpt", gpt(gpt_options));
  EncoderDecoderOptions forecast = tiny_series(), classifier = tiny_series();
  forecast.fused = classifier.fused = fused;
  forecast.out_features = 2;
  forecast.horizon = 4;
  forecast.start_steps = 3;
  classifier.num_classes = 3;
  models.emplace("forecast", encoder_decoder(forecast));
  models.emplace("series_classifier", encoder_decoder(classifier));
  models.emplace("unet", unet(tiny_unet(false)));
  models.emplace("unet_bilinear", unet(tiny_unet(true)));
  return models;
}

std::map<std::string, at::Tensor> read_cases() {
  const NamedTensors tensors = io::load_tensors(golden::path("networks.safetensors"));
  return {tensors.begin(), tensors.end()};
}

/// |ours − golden| ≤ relative · (|golden| + the largest of the tensor + 0.01): sums of values that cancel keep no digits of
/// their own, and the gradient of a key's bias, which softmax does not see, is nothing but rounding.
void expect_near(const at::Tensor& ours, const at::Tensor& golden, double relative, const std::string& what) {
  ASSERT_EQ(ours.sizes(), golden.sizes()) << what;
  const at::Tensor difference = (ours.detach().to(at::kDouble) - golden).abs();
  const at::Tensor allowed = relative * (golden.abs() + golden.abs().max() + 0.01);
  EXPECT_TRUE((difference <= allowed).all().item<bool>()) << what << " differs by " << difference.max().item<double>();
}

void expect_case(const std::string& name, const Model& model, const std::map<std::string, at::Tensor>& cases,
                 torch::Dtype dtype, double relative) {
  SCOPED_TRACE(name);
  const bool is_unet = name.starts_with("unet");
  set_formula_weights(model);
  model.module()->to(dtype);
  model.train(is_unet);
  const at::Tensor x = cases.at(name + ".input");
  std::vector<at::Tensor> inputs{x.is_floating_point() ? x.to(dtype) : x};
  if (!x.is_floating_point() && x.dim() == 3) inputs = x.unbind(1);  // ids, attention mask, token types
  const at::Tensor y = model.forward_all(inputs).front();
  expect_near(y, cases.at(name + ".output"), relative, "output");
  (y * cases.at(name + ".dy").to(dtype)).sum().backward();
  size_t gradients = 0;
  for (const auto& [key, parameter] : model.named_parameters()) {
    const auto found = cases.find(name + ".grad." + key);
    ASSERT_EQ(found != cases.end(), parameter.grad().defined()) << key;
    if (found == cases.end()) continue;  // the pooler, where nothing reads it
    ++gradients;
    expect_near(parameter.grad(), found->second, relative, key);
  }
  for (const auto& [key, buffer] : model.named_buffers()) {
    expect_near(buffer.to(at::kDouble), cases.at(name + ".buffer." + key).to(at::kDouble), relative, key);
  }
  size_t expected = 0;
  for (const auto& [key, tensor] : cases) expected += key.starts_with(name + ".grad.") ? 1 : 0;
  EXPECT_EQ(gradients, expected) << "the golden has parameters that the model lacks";
}

}  // namespace

TEST(NetworksGolden, OutputsAndGradientsEqualPythonsInFloat64) {
  const auto cases = read_cases();
  for (const auto& [name, model] : golden_models(false)) expect_case(name, model, cases, torch::kFloat64, 1e-9);
}

// Float32 rounds at 6e-8; through two layers and a backward pass that grows to some 1e-5 of a tensor's largest value.
TEST(NetworksGolden, OutputsAndGradientsEqualPythonsInFloat32) {
  const auto cases = read_cases();
  for (const auto& [name, model] : golden_models(false)) expect_case(name, model, cases, torch::kFloat32, 1e-4);
}

TEST(NetworksGolden, FusedLayersChangeTheRoundingOnly) {
  const auto cases = read_cases();
  for (const auto& [name, model] : golden_models(true)) {
    if (!name.starts_with("unet")) expect_case(name, model, cases, torch::kFloat64, 1e-9);
  }
}

}  // namespace bellows::models
