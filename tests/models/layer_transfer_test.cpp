// Students that start from a teacher's layers.
#include "bellows/models/layer_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/models/mlp.h"
#include "bellows/models/resnet.h"
#include "tests/models/small_models.h"
#include "tests/support/errors.h"

namespace bellows::models {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using testing::SizeIs;

BertOptions bert_with(int64_t layers, TextHead head = TextHead::hidden_states) {
  BertOptions options = small_bert(head);
  options.num_hidden_layers = layers;
  return options;
}

DistilBertOptions distilbert_with(int64_t layers, TextHead head = TextHead::hidden_states) {
  DistilBertOptions options = small_distilbert(head);
  options.n_layers = layers;
  return options;
}

/// Random norms and biases, too, which initialization leaves at 1 and 0.
Model randomized(const Model& model) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) parameter.normal_(0, 0.3);
  model.eval();
  return model;
}

at::Tensor tensor_of(const Model& model, const std::string& name) {
  for (const auto& [key, tensor] : model.state_dict()) {
    if (key == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

at::Tensor tokens() {
  return torch::randint(1, 30, {3, 7}, at::kLong);
}

}  // namespace

TEST(LayerTransfer, CopiesTheChosenLayersAndEverythingBesides) {
  at::manual_seed(1);
  const Model teacher = randomized(bert(bert_with(4, TextHead::classifier)));
  const Model student = bert(bert_with(2, TextHead::classifier));
  student.eval();
  const LayerTransfer transfer = copy_layers(student, teacher, {0, 3});
  EXPECT_THAT(transfer.copied, SizeIs(student.state_dict().size()));
  EXPECT_THAT(transfer.kept, SizeIs(0));
  const std::string rest = "attention.self.query.weight", prefix = "bert.encoder.layer.";
  EXPECT_TRUE(torch::equal(tensor_of(student, prefix + "0." + rest), tensor_of(teacher, prefix + "0." + rest)));
  EXPECT_TRUE(torch::equal(tensor_of(student, prefix + "1." + rest), tensor_of(teacher, prefix + "3." + rest)));
  EXPECT_THAT(transfer.to_string(4), HasSubstr("layers 0, 3 of 4: 41 tensors copied, 0 kept"));
}

TEST(LayerTransfer, AllLayersComputeWhatTheTeacherComputes) {
  at::manual_seed(2);
  const at::Tensor x = tokens();
  const Model teacher = randomized(bert(bert_with(3))), student = bert(bert_with(3, TextHead::classifier));
  student.eval();
  const LayerTransfer transfer = copy_layers(student, teacher, {0, 1, 2});
  EXPECT_THAT(transfer.kept, ElementsAre("classifier.weight", "classifier.bias"));
  const Model again = bert(bert_with(3));
  again.eval();
  copy_layers(again, student, {0, 1, 2});
  EXPECT_TRUE(torch::equal(again.forward(x), teacher.forward(x)));

  const Model gpt_teacher = randomized(gpt(small_gpt())), gpt_student = gpt(small_gpt());
  gpt_student.eval();
  copy_layers(gpt_student, gpt_teacher, {0, 1});
  EXPECT_TRUE(torch::equal(gpt_student.forward(x), gpt_teacher.forward(x)));
}

// A wrong name in the table of names, or a forgotten token type, changes the hidden states.
TEST(LayerTransfer, ADistilBertWithAllLayersOfABertComputesItsHiddenStates) {
  at::manual_seed(3);
  const at::Tensor x = tokens();
  const Model teacher = randomized(bert(bert_with(3))), student = randomized(distilbert(distilbert_with(3)));
  copy_layers(student, teacher, {0, 1, 2});
  EXPECT_TRUE(torch::allclose(student.forward(x), teacher.forward(x), 1e-5, 1e-5));

  const Model mlm = randomized(bert(bert_with(3, TextHead::masked_lm)));
  const Model mlm_student = randomized(distilbert(distilbert_with(3, TextHead::masked_lm)));
  EXPECT_THAT(copy_layers(mlm_student, mlm, {0, 1, 2}).kept, SizeIs(0));
  EXPECT_TRUE(torch::allclose(mlm_student.forward(x), mlm.forward(x), 1e-5, 1e-5));
}

TEST(LayerTransfer, EverySecondLayerIsDistilBertsWay) {
  at::manual_seed(4);
  EXPECT_THAT(every_second_layer(6, 12), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(every_second_layer(2, 3), ElementsAre(0, 2));
  const Model teacher = randomized(bert(bert_with(4, TextHead::classifier)));
  const Model student = distilbert(distilbert_with(2, TextHead::classifier));
  EXPECT_EQ(layer_count(teacher), 4);
  EXPECT_EQ(layer_count(student), 2);
  const LayerTransfer transfer = copy_layers(student, teacher, every_second_layer(2, 4));
  EXPECT_TRUE(torch::equal(tensor_of(student, "distilbert.transformer.layer.1.ffn.lin2.weight"),
                           tensor_of(teacher, "bert.encoder.layer.2.output.dense.weight")));
  EXPECT_TRUE(torch::equal(tensor_of(student, "distilbert.embeddings.word_embeddings.weight"),
                           tensor_of(teacher, "bert.embeddings.word_embeddings.weight")));
  EXPECT_THAT(transfer.kept, ElementsAre("pre_classifier.weight", "pre_classifier.bias"));
}

TEST(LayerTransfer, KeepsTheStudentsDtypeAndGradients) {
  at::manual_seed(5);
  const Model teacher = randomized(bert(bert_with(2))), student = bert(bert_with(1));
  student.to(at::kBFloat16);
  copy_layers(student, teacher, {1});
  for (const at::Tensor& parameter : student.parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(parameter.requires_grad());
  }
}

TEST(LayerTransfer, RejectsWhatDoesNotFitAndChangesNothing) {
  at::manual_seed(6);
  const Model teacher = bert(bert_with(4)), student = bert(bert_with(2));
  EXPECT_THAT(message_of([&] { copy_layers(student, teacher, {0}); }),
              HasSubstr("one teacher layer for each of the student's 2 layers, got 1 (0)"));
  EXPECT_THAT(message_of([&] { copy_layers(student, teacher, {0, 4}); }), HasSubstr("layers 0 to 3, got layer 4"));
  EXPECT_THAT(message_of([&] { copy_layers(student, teacher, {-1, 0}); }), HasSubstr("got layer -1"));
  EXPECT_THAT(message_of([&] { every_second_layer(3, 4); }), HasSubstr("at least 5 layers, got 4"));
  BertOptions wide = bert_with(2);
  wide.hidden_size = 16;
  const Model wide_student = bert(wide);
  const at::Tensor before = wide_student.parameters().front().detach().clone();
  EXPECT_THAT(message_of([&] { copy_layers(wide_student, teacher, {0, 1}); }), HasSubstr("models of the same width"));
  EXPECT_TRUE(torch::equal(wide_student.parameters().front(), before));
  EXPECT_THAT(message_of([&] {
                copy_layers(bert(bert_with(2)), gpt(small_gpt()), {0, 1});
              }),
              HasSubstr("the teacher has no tensor \"h.0.attention"));
  EXPECT_THAT(message_of([&] { copy_layers(digits_resnet(), teacher, {0, 1}); }), HasSubstr("one list of layers"));
}

}  // namespace bellows::models
