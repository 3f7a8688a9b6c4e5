#include "bellows/optim/clip.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/core/scaled_step.h"
#include "bellows/kernels/cpu/grad_norm.h"
#include "bellows/kernels/ref/grad_norm.h"
#include "tests/optim/torch_golden.h"

namespace bellows::optim {

namespace {

constexpr double inf_norm = std::numeric_limits<double>::infinity();

at::Tensor with_grad(const at::Tensor& grad) {
  at::Tensor p = torch::empty_like(grad).requires_grad_();
  p.mutable_grad() = grad;
  return p;
}

std::vector<at::Tensor> parameters_with(std::vector<at::Tensor> grads) {
  for (at::Tensor& grad : grads) grad = with_grad(grad);
  return grads;
}

/// "f32.0", "f32.1", … of the file.
std::vector<at::Tensor> golden_list(const io::SafetensorsFile& file, const std::string& prefix) {
  const auto& all = file.entries();
  for (std::vector<at::Tensor> result;;) {
    const std::string name = prefix + "." + std::to_string(result.size());
    if (std::none_of(all.begin(), all.end(), [&](const auto& entry) { return entry.name == name; })) return result;
    result.push_back(file.tensor(name));
  }
}

void expect_close(const at::Tensor& got, const at::Tensor& golden, double tolerance) {
  EXPECT_TRUE(torch::allclose(got.to(at::kDouble), golden.to(at::kDouble), tolerance, tolerance * 1e-3))
      << got.flatten().slice(0, 0, 5) << golden.flatten().slice(0, 0, 5);
}

/// Multiplies by itself, as a fused optimizer does, in plain operators.
class ScaledSgd : public torch::optim::SGD, public ScaledStep {
 public:
  using torch::optim::SGD::SGD;
  bool takes = true;
  at::Tensor scale, found_inf;
  bool takes_grad_scale() const override { return takes; }
  void set_grad_scale(at::Tensor grad_scale, at::Tensor found) override {
    scale = std::move(grad_scale);
    found_inf = std::move(found);
  }
  at::Tensor step(LossClosure closure = nullptr) override {
    if (found_inf.defined() && found_inf.item<float>() > 0) return {};
    const torch::NoGradGuard no_grad;
    for (auto& p : param_groups()[0].params()) {
      at::Tensor g = p.grad();
      if (scale.defined()) p.mutable_grad() = g / scale;
      scaled.push_back(g);
    }
    at::Tensor loss = torch::optim::SGD::step(std::move(closure));
    for (size_t i = 0; i < scaled.size(); ++i) param_groups()[0].params()[i].mutable_grad() = scaled[i];
    scaled.clear();
    return loss;
  }

 private:
  std::vector<at::Tensor> scaled;
};

}  // namespace

TEST(GradNormKernel, EqualsItsReferenceForAwkwardSizes) {
  torch::manual_seed(0);
  using kernels::NormSum, kernels::Type;
  const std::vector<std::pair<at::ScalarType, Type>> types = {
      {at::kFloat, Type::f32}, {at::kDouble, Type::f64}, {at::kBFloat16, Type::bf16}, {at::kHalf, Type::f16}};
  std::vector<at::Tensor> keep;
  std::vector<kernels::NormTensor> tensors;
  for (const int64_t size : {0, 1, 3, 4, 7, 8, 15, 17, 31, 33, 63, 65, 127, 1000, 32767, 32769, 70001}) {
    for (const auto& [dtype, type] : types) {
      keep.push_back(torch::randn({size}).to(dtype));
      tensors.push_back({size, keep.back().const_data_ptr(), type});
      for (const NormSum what : {NormSum::abs, NormSum::squares, NormSum::max_abs}) {
        const std::span<const kernels::NormTensor> one(&tensors.back(), 1);
        const double expected = kernels::ref::norm_sum(one, what);
        EXPECT_NEAR(kernels::cpu::norm_sum(one, what), expected, 1e-12 * expected) << size << " " << dtype;
      }
    }
  }
  const double all = kernels::cpu::norm_sum(tensors, NormSum::squares);
  EXPECT_NEAR(all, kernels::ref::norm_sum(tensors, NormSum::squares), 1e-12 * all);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_EQ(kernels::cpu::norm_sum(tensors, NormSum::squares), all);
  at::set_num_threads(threads);
}

TEST(GradNormKernel, ScalesToItsReferencesBits) {
  torch::manual_seed(0);
  for (const int64_t size : {0, 1, 3, 7, 17, 33, 1000, 32769, 70001}) {
    at::Tensor a = torch::randn({size}), b = a.clone(), c = torch::randn({size}, at::kDouble), d = c.clone();
    using kernels::Type;
    const std::vector<kernels::ScaleTensor> ours = {{size, a.mutable_data_ptr()},
                                                    {size, c.mutable_data_ptr(), Type::f64}},
                                            reference = {{size, b.mutable_data_ptr()},
                                                         {size, d.mutable_data_ptr(), Type::f64}};
    kernels::cpu::scale(ours, 0.3);
    kernels::ref::scale(reference, 0.3);
    EXPECT_TRUE(torch::equal(a, b) && torch::equal(c, d)) << size;
  }
}

TEST(GradNormKernel, SeesInfinityAndNanWhereverTheyAre) {
  using kernels::NormSum;
  for (const int64_t at : {0, 5, 63, 64, 99, 39999}) {
    at::Tensor x = torch::ones(40000);
    const kernels::NormTensor tensor{x.numel(), x.const_data_ptr(), kernels::Type::f32};
    for (const NormSum what : {NormSum::abs, NormSum::squares, NormSum::max_abs}) {
      x[at] = -INFINITY;
      EXPECT_EQ(kernels::cpu::norm_sum({&tensor, 1}, what), INFINITY) << at;
      EXPECT_EQ(kernels::ref::norm_sum({&tensor, 1}, what), INFINITY);
      x[at] = -std::nanf("");
      EXPECT_TRUE(std::isnan(kernels::cpu::norm_sum({&tensor, 1}, what))) << at;
      EXPECT_TRUE(std::isnan(kernels::ref::norm_sum({&tensor, 1}, what)));
    }
  }
}

TEST(Clip, EqualsTorchs) {
  const auto file = open_golden("clip.safetensors");
  for (const std::string kind : {"f32", "f64", "bf16", "mixed"}) {
    const bool narrow = kind == "bf16" || kind == "mixed";
    for (const auto& [norm_type, name] : {std::pair{1.0, "1"}, {2.0, "2"}, {3.0, "3"}, {inf_norm, "inf"}}) {
      SCOPED_TRACE(kind + " norm " + name);
      std::vector<at::Tensor> parameters = parameters_with(golden_list(file, kind));
      parameters.insert(parameters.begin() + 1,
                        {at::Tensor(), torch::ones(3, at::requires_grad())});  // without gradient
      const at::Tensor norm = clip_grad_norm_(parameters, 1.5, {.norm_type = norm_type});
      // PyTorch sums each bf16 norm into bf16.
      const double tolerance = kind == "f64" ? 1e-12 : narrow ? 1e-2 : 1e-6;
      expect_close(norm, file.tensor(kind + ".norm_" + name), tolerance);
      EXPECT_EQ(norm.dim(), 0);
      parameters.erase(parameters.begin() + 1, parameters.begin() + 3);
      const auto clipped = golden_list(file, kind + ".clipped_" + name);
      if (norm_type == 2) {
        ASSERT_EQ(clipped.size(), kind == "f32" ? 5u : parameters.size());  // without the empty one
      }
      for (size_t i = 0; i < clipped.size(); ++i) expect_close(parameters[i].grad(), clipped[i], 2 * tolerance);
    }
  }
}

TEST(Clip, ValueEqualsTorchs) {
  const auto file = open_golden("clip.safetensors");
  const auto parameters = parameters_with(golden_list(file, "f64"));
  clip_grad_value_(parameters, 0.5);
  const auto golden = golden_list(file, "f64.value");
  ASSERT_EQ(golden.size(), parameters.size());
  for (size_t i = 0; i < golden.size(); ++i) EXPECT_TRUE(torch::equal(parameters[i].grad(), golden[i]));
  const auto bad = parameters_with({torch::tensor({1.0f, std::nanf(""), -INFINITY})});
  clip_grad_value_(bad, 2);
  EXPECT_TRUE(torch::allclose(bad[0].grad(), torch::tensor({1.0f, std::nanf(""), -2.0f}), 0, 0, /*equal_nan=*/true));
}

TEST(Clip, SmallGradientsKeepTheirBits) {
  torch::manual_seed(0);
  const at::Tensor grad = torch::randn({100}), before = grad.clone();
  const auto parameters = parameters_with({grad});
  const auto version = grad._version();
  clip_grad_norm_(parameters, 1e9);
  EXPECT_TRUE(torch::equal(grad, before));
  EXPECT_EQ(grad._version(), version);  // not even written to
  clip_grad_norm_(parameters, 1);
  EXPECT_NEAR(grad.norm().item<double>(), 1, 1e-5);
  EXPECT_EQ(grad._version(), version + 1);
}

TEST(Clip, StridedAndComplexGradientsTakeTheOperators) {
  torch::manual_seed(0);
  const at::Tensor wide = torch::randn({6, 8}), every_other = wide.slice(1, 0, 8, 2),
                   transposed = torch::randn({4, 5}).t();
  const at::Tensor complex = torch::randn({3}, at::kComplexFloat);
  const double expected =
      std::sqrt(every_other.square().sum().item<double>() + transposed.square().sum().item<double>() +
                complex.abs().square().sum().item<double>());
  const auto parameters = parameters_with({every_other, transposed, complex});
  EXPECT_NEAR(clip_grad_norm_(parameters, 0.5).item<double>(), expected, 1e-5);
  EXPECT_NEAR(get_total_norm({every_other, transposed, complex}).item<double>(), 0.5, 1e-5);
}

TEST(Clip, AHugeNormDoesNotOverflow) {
  const auto parameters = parameters_with({torch::full({4}, 1e30f)});
  EXPECT_NEAR(clip_grad_norm_(parameters, 1).item<double>(), 2e30, 1e24);
  EXPECT_NEAR(parameters[0].grad()[0].item<double>(), 0.5, 1e-6);
}

TEST(Clip, NonfiniteNormsDoAsTorchsUnlessAskedNotTo) {
  const auto infinite = parameters_with({torch::tensor({1.0f, INFINITY})});
  EXPECT_THROW(clip_grad_norm_(infinite, 1, {.error_if_nonfinite = true}), c10::Error);
  EXPECT_EQ(infinite[0].grad()[0].item<float>(), 1);
  EXPECT_EQ(clip_grad_norm_(infinite, 1).item<float>(), INFINITY);
  EXPECT_EQ(infinite[0].grad()[0].item<float>(), 0);
  EXPECT_TRUE(std::isnan(infinite[0].grad()[1].item<float>()));
  const auto nan = parameters_with({torch::tensor({1.0f, std::nanf("")})});
  EXPECT_TRUE(std::isnan(clip_grad_norm_(nan, 1).item<float>()));
  EXPECT_TRUE(std::isnan(nan[0].grad()[0].item<float>()));
}

TEST(Clip, WrongUseIsRefused) {
  const auto parameters = parameters_with({torch::ones(3)});
  EXPECT_THROW(clip_grad_norm_(parameters, -1), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(parameters, std::nan("")), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(parameters, 1, {.norm_type = 0}), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(parameters, 1, {.norm_type = std::nan("")}), c10::ValueError);
  EXPECT_THROW(clip_grad_value_(parameters, -1), c10::ValueError);
  EXPECT_THROW(clip_grads_with_norm_(parameters, 1, torch::ones(2)), c10::ValueError);
  EXPECT_THROW(clip_grads_with_norm_(parameters, 1, {}), c10::ValueError);
  EXPECT_EQ(clip_grad_norm_({}, 1).item<double>(), 0);
  EXPECT_EQ(clip_grad_norm_({torch::ones(3, at::requires_grad())}, 1).item<double>(), 0);
  const auto sparse = parameters_with({torch::ones({3}).to_sparse()});
  EXPECT_THROW(clip_grad_norm_(sparse, 1), c10::ValueError);
  EXPECT_THROW(clip_grad_value_(sparse, 1), c10::ValueError);
  EXPECT_THROW(get_total_norm({torch::ones(3, at::kLong)}), c10::ValueError);
}

TEST(ClipAndStep, IsClippingAndSteppingInOne) {
  torch::manual_seed(0);
  const at::Tensor grad = torch::randn({50}), start = torch::randn({50});
  for (const double max_norm : {0.5, 1e9, 0.0}) {
    const at::Tensor a = start.clone().requires_grad_(), b = start.clone().requires_grad_();
    ScaledSgd in_one(std::vector<at::Tensor>{a}, 0.1);
    torch::optim::SGD apart(std::vector<at::Tensor>{b}, 0.1);
    a.mutable_grad() = grad * 1024;
    b.mutable_grad() = grad.clone();
    const at::Tensor norm = clip_and_step(in_one, max_norm, {.grad_scale = torch::tensor(1024.0f)});
    expect_close(norm, clip_grad_norm_({b}, max_norm), 1e-6);
    apart.step();
    expect_close(a, b, 1e-6);
    EXPECT_TRUE(torch::equal(a.grad(), grad * 1024));
    in_one.takes = false;  // now it has to be done beforehand
    in_one.scale = in_one.found_inf = at::Tensor();
    const at::Tensor again = clip_and_step(in_one, max_norm, {.grad_scale = torch::tensor(1024.0f)});
    expect_close(again, norm, 1e-6);
    expect_close(a.grad(), b.grad(), 1e-6);
  }
}

TEST(ClipAndStep, SkipsWhatIsNotFinite) {
  for (const bool takes : {true, false}) {
    const at::Tensor p = torch::ones(2, at::requires_grad());
    ScaledSgd sgd(std::vector<at::Tensor>{p}, 0.1);
    sgd.takes = takes;
    p.mutable_grad() = torch::tensor({1.0f, INFINITY});
    clip_and_step(sgd, 1, {.skip_nonfinite = true});
    EXPECT_TRUE(torch::equal(p.detach(), torch::ones(2)));
    p.mutable_grad() = torch::ones(2);
    clip_and_step(sgd, 10, {.skip_nonfinite = true});
    EXPECT_TRUE(torch::allclose(p.detach(), torch::full({2}, 0.9f)));
  }
  torch::optim::SGD sgd(std::vector<at::Tensor>{torch::ones(2, at::requires_grad())}, 0.1);
  EXPECT_THROW(clip_and_step(sgd, -1), c10::ValueError);
  EXPECT_THROW(clip_and_step(sgd, 1, {.grad_scale = torch::ones(2)}), c10::ValueError);
}

TEST(ZeroGrad, LetsGoOrZeroes) {
  const at::Tensor p = torch::ones(3, at::requires_grad()), without = torch::ones(3, at::requires_grad());
  p.mutable_grad() = without * 2;  // as backward with create_graph leaves it
  const at::Tensor grad = p.grad();
  ASSERT_TRUE(grad.requires_grad());
  zero_grad({p, without, at::Tensor()}, /*set_to_none=*/false);
  EXPECT_TRUE(p.grad().is_same(grad));
  EXPECT_TRUE(torch::equal(grad, torch::zeros(3)));
  EXPECT_FALSE(p.grad().requires_grad());
  zero_grad({p, without});
  EXPECT_FALSE(p.grad().defined());
}

}  // namespace bellows::optim
