#include "bellows/nn/distillation.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>

#include "tests/nn/gradcheck.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace bellows::nn {

namespace {

using testing::HasSubstr;

/// The student's tensors, which get gradients.
struct Student {
  at::Tensor logits, hidden, maps;
};

void expect_golden(const Golden& golden, const std::string& name,
                   const std::function<at::Tensor(const Student&)>& loss_of) {
  SCOPED_TRACE(name);
  const auto leaf = [&](const char* tensor) { return golden(tensor).clone().requires_grad_(); };
  const Student student{leaf("student"), leaf("student_hidden"), leaf("student_maps")};
  const at::Tensor loss = loss_of(student);
  EXPECT_TRUE(at::allclose(loss, golden(name + ".loss"), 1e-10, 1e-12)) << loss << " vs " << golden(name + ".loss");
  loss.backward();
  int checked = 0;
  for (const auto& [tensor, input] : {std::pair("student", student.logits), std::pair("student_hidden", student.hidden),
                                      std::pair("student_maps", student.maps)}) {
    if (!input.grad().defined()) continue;
    EXPECT_TRUE(at::allclose(input.grad(), golden(c10::str(name, ".", tensor, ".grad")), 1e-10, 1e-12)) << tensor;
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

}  // namespace

TEST(Distillation, LossesAreThoseOfPyTorch) {
  const Golden golden("nn/distillation.safetensors");
  const at::Tensor teacher = golden("teacher"), hidden = golden("teacher_hidden"), mask = golden("mask");
  expect_golden(golden, "kl", [&](const Student& s) { return distillation_loss(s.logits, teacher); });
  expect_golden(golden, "kl_masked", [&](const Student& s) {
    return distillation_loss(s.logits, teacher, {.temperature = 3.5, .mask = mask});
  });
  expect_golden(golden, "mse", [&](const Student& s) { return hidden_mse_loss(s.hidden, hidden); });
  expect_golden(golden, "mse_masked", [&](const Student& s) { return hidden_mse_loss(s.hidden, hidden, mask); });
  expect_golden(golden, "cosine", [&](const Student& s) { return hidden_cosine_loss(s.hidden, hidden); });
  expect_golden(golden, "cosine_masked", [&](const Student& s) { return hidden_cosine_loss(s.hidden, hidden, mask); });
  expect_golden(golden, "attention",
                [&](const Student& s) { return attention_transfer_loss(s.maps, golden("teacher_maps")); });
  expect_golden(golden, "triple", [&](const Student& s) {
    return triple_loss({.student_logits = s.logits,
                        .teacher_logits = teacher,
                        .student_hidden = s.hidden,
                        .teacher_hidden = hidden,
                        .labels = golden("labels")},
                       {.mask = mask});
  });
}

TEST(Distillation, AllLogitsInTheCacheGiveTheWholeLoss) {
  const Golden golden("nn/distillation.safetensors");
  const at::Tensor teacher = golden("teacher");
  const auto cached = [&](const Student& s) { return distillation_loss(s.logits, top_logits(teacher, 7, 2)); };
  expect_golden(golden, "kl", cached);
  const at::Tensor whole = distillation_loss(golden("student"), teacher);
  double before = 0;
  for (const int64_t k : {1, 3, 5, 7}) {  // merging classes never increases a divergence
    const double loss = distillation_loss(golden("student"), top_logits(teacher, k, 2)).item<double>();
    EXPECT_GE(loss, before - 1e-9);
    before = loss;
  }
  EXPECT_NEAR(before, whole.item<double>(), 1e-9);
}

TEST(Distillation, GradientsFromTheCacheAgreeWithFiniteDifferences) {
  const Golden golden("nn/distillation.safetensors");
  const TopLogits top = top_logits(golden("teacher"), 3, 2);
  EXPECT_TRUE(gradcheck([&](const GradcheckInputs& t) { return distillation_loss(t[0], top); }, {golden("student")}));
}

TEST(Distillation, TheTeacherGetsNoGradient) {
  const at::Tensor student = torch::randn({2, 3}).requires_grad_(), teacher = torch::randn({2, 3}).requires_grad_();
  (distillation_loss(student, teacher) + hidden_mse_loss(student, teacher) + hidden_cosine_loss(student, teacher))
      .backward();
  EXPECT_TRUE(student.grad().defined());
  EXPECT_FALSE(teacher.grad().defined());
}

TEST(Distillation, CertainTeachersHaveFiniteLosses) {
  const at::Tensor teacher = torch::tensor({{1000.0F, 0.F, -1000.F}});
  at::Tensor student = torch::tensor({{0.F, 1.F, 2.F}}).requires_grad_();
  for (const at::Tensor& loss :
       {distillation_loss(student, teacher), distillation_loss(student, top_logits(teacher, 1, 2))}) {
    const at::Tensor gradient = torch::autograd::grad({loss}, {student})[0];
    EXPECT_TRUE(at::isfinite(loss).item<bool>()) << loss;
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>()) << gradient;
  }
}

TEST(Distillation, RejectsBadInput) {
  const at::Tensor x = torch::randn({4, 5});
  EXPECT_THAT(message_of([&] {
                distillation_loss(x, torch::randn({4, 6}));
              }),
              HasSubstr("logits of one shape for student and teacher, got Float [4, 5] and Float [4, 6]"));
  EXPECT_THAT(message_of([&] { distillation_loss(x, x, {.temperature = 0}); }),
              HasSubstr("a positive temperature, got 0"));
  EXPECT_THAT(message_of([&] { distillation_loss(x, x, {.mask = torch::ones({5})}); }),
              HasSubstr("a mask of shape [4], got Float [5]"));
  EXPECT_THAT(message_of([&] { top_logits(x, 6, 2); }), HasSubstr("k from 1 to the number of classes 5, got 6"));
  EXPECT_THAT(message_of([&] {
                distillation_loss(x, top_logits(torch::randn({3, 5}), 2, 2));
              }),
              HasSubstr("the student's positions [4]"));
  EXPECT_THAT(message_of([&] { hidden_mse_loss(x, at::Tensor()); }), HasSubstr("an undefined tensor"));
  EXPECT_THAT(message_of([&] {
                attention_transfer_loss(torch::randn({1, 2, 3}), torch::randn({1, 2, 4}));
              }),
              HasSubstr("differ only in C"));
}

}  // namespace bellows::nn
