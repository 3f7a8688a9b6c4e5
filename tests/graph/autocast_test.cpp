#include "bellows/graph/passes/autocast.h"

#include "bellows/amp/autocast.h"
#include "bellows/tap/half_operators.h"
#include "tests/graph/pass_support.h"
#include "tests/graph/training.h"

namespace bellows::graph::testing {
namespace {

PassBackend rewriting(c10::ScalarType dtype = at::kBFloat16, PassOptions options = {}) {
  PassBackend backend(std::move(options));
  backend.list.insert(
      std::find_if(backend.list.begin(), backend.list.end(), [](const Pass& pass) { return pass.name == "constants"; }),
      autocast_pass(dtype));
  return backend;
}

using Forward = std::function<at::Tensor(const at::Tensor&)>;

/// A function of fp32, rewritten, gives what the same function gives under libtorch's autocast.
std::shared_ptr<PassBackend> expect_autocast(const Forward& forward, const at::Tensor& x, double tolerance = 0,
                                             c10::ScalarType dtype = at::kBFloat16, PassOptions pass_options = {}) {
  const auto backend = std::make_shared<PassBackend>(rewriting(dtype, std::move(pass_options)));
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  const c10::InferenceMode inference;
  for (int call = 0; call < 4; ++call) {
    const at::Tensor input = x * (1 + 0.1 * call), plain = forward(input);
    const at::Tensor cast = [&] {
      const amp::AutocastGuard guard(at::kCPU, dtype);
      return forward(input).to(at::kFloat);
    }();
    at::Tensor passed;
    {
      const tap::FastHalfGuard fast_half(dtype == at::kHalf);  // as in AutocastGuard
      region.run([&] { passed = forward(input); });
    }
    EXPECT_EQ(passed.dtype(), plain.dtype());
    const double difference = (passed - (call ? cast : plain)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * plain.abs().max().item<double>()) << "call " << call << "\n"
                                                                        << backend->to_text();
    EXPECT_FALSE(same_bits(plain, cast));
  }
  return backend;
}

TEST(AutocastPass, GivesTheBitsOfAutocast) {
  nn::Sequential net = mlp();
  net->eval();
  const auto linears = expect_autocast([&](const at::Tensor& x) { return net->forward(x); }, torch::randn({8, 16}));
  EXPECT_EQ(linears->reports.back().fired("autocast"), 3);
  expect_autocast([&](const at::Tensor& x) { return net->forward(x); }, torch::randn({8, 16}), 0, at::kHalf);

  nn::Sequential images = conv_net();
  images->eval();
  const auto convolutions =
      expect_autocast([&](const at::Tensor& x) { return images->forward(x); }, torch::randn({2, 3, 8, 8}));
  EXPECT_EQ(convolutions->reports.back().fired("autocast"), 3) << convolutions->programs.back().to_text();
}

TEST(AutocastPass, OfOneWeightSeenInManyWays) {
  const at::Tensor table = torch::randn({6, 8}), flat = torch::randn({200});
  const auto backend = expect_autocast(
      [&](const at::Tensor& x) {
        const at::Tensor a = flat.narrow(0, 8, 64).view({8, 8}), b = flat.narrow(0, 100, 64).view({8, 8});
        return at::mm(at::mm(at::mm(at::mm(x, table), a), b.t()), a.t()) + at::mm(x, table);
      },
      torch::randn({4, 6}), 0, at::kBFloat16, {.without = {"loops"}});
  int64_t casts = 0;
  for (const Instruction& one : backend->programs.back().instructions)
    casts += one.op && one.op->name == "aten::_to_copy";
  EXPECT_EQ(casts, 4 + 1) << "x, the table and two parts of a buffer, each once, and the result\n"
                          << backend->programs.back().to_text();
}

/// Softmax and reductions stay in fp32, where autocast rounds them: close, not equal.
TEST(AutocastPass, OfAttention) {
  const at::Tensor w = torch::randn({16, 48}) / 4;
  const auto attention = [&](const at::Tensor& x) {
    const auto parts = at::mm(x, w).chunk(3, 1);
    return at::mm(at::softmax(at::mm(parts[0], parts[1].t()) / 4, -1), parts[2]).sum(0);
  };
  const auto backend = expect_autocast(attention, torch::randn({12, 16}), 2e-2);
  EXPECT_EQ(backend->reports.back().fired("autocast"), 3);
  const auto fused = [&](const at::Tensor& x) {
    const auto parts = at::mm(x, w).view({1, 12, 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  };
  EXPECT_EQ(expect_autocast(fused, torch::randn({12, 16}))->reports.back().fired("autocast"), 2);
}

/// What training leaves, plainly, under libtorch's autocast, and rewritten.
struct Trained {
  Tensors plain, cast, passed;
  std::shared_ptr<PassBackend> backend;
};

using Step = std::function<at::Tensor(int)>;

Trained train(const std::function<std::pair<std::shared_ptr<nn::Module>, Step>()>& make) {
  const auto program = [&](bool cast) {
    return [=] {
      const auto [module, loss] = make();
      const Step forward = loss;
      return training<SGD>(
          module,
          [=](int call) {
            if (!cast) return forward(call);
            const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
            return forward(call).to(at::kFloat);
          },
          SGDOptions(0.05).momentum(0.9));
    };
  };
  Trained all{.backend = std::make_shared<PassBackend>(rewriting())};
  RegionOptions options;
  options.backend = all.backend;
  Region region(options);
  all.plain = outcome(program(false), 6, nullptr);
  all.cast = outcome(program(true), 6, nullptr);
  all.passed = outcome(program(false), 6, &region);
  return all;
}

double distance(const Tensors& a, const Tensors& b) {
  double square = 0, of = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() || !a[i].is_floating_point()) continue;
    square += (a[i] - b[i]).to(at::kDouble).square().sum().item<double>();
    of += a[i].to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(square / of);
}

/// The rewritten steps are as far from fp32 as autocast's are, and not further from these than both are from fp32.
void expect_trained(const Trained& all, int64_t products) {
  ASSERT_EQ(all.plain.size(), all.passed.size());
  for (size_t i = 0; i < all.plain.size(); ++i) {
    if (all.plain[i].defined()) {
      EXPECT_EQ(all.plain[i].dtype(), all.passed[i].dtype());
    }
  }
  const double cast = distance(all.plain, all.cast), passed = distance(all.plain, all.passed);
  EXPECT_GT(passed, 0);
  EXPECT_LE(passed, 1.5 * cast);
  EXPECT_LE(distance(all.cast, all.passed), cast + passed);
  EXPECT_LE(cast, 3e-2) << "six steps in bf16";
  EXPECT_EQ(all.backend->reports.back().fired("autocast"), products) << all.backend->to_text();
}

TEST(AutocastPass, TrainsAsAutocastDoes) {
  expect_trained(train([]() -> std::pair<std::shared_ptr<nn::Module>, Step> {
                   const nn::Sequential net = mlp();
                   return {net.ptr(), classify(net, torch::randn({8, 16}))};
                 }),
                 3 + 5);
  expect_trained(train([]() -> std::pair<std::shared_ptr<nn::Module>, Step> {
                   const nn::Sequential net = conv_net();
                   return {net.ptr(), classify(net, torch::randn({8, 3, 8, 8}))};
                 }),
                 3 + 4);
}

TEST(AutocastPass, LeavesOthersAsTheyAre) {
  const at::Tensor w = torch::randn({8, 8}), doubles = w.to(at::kDouble), ids = torch::randint(0, 9, {8, 8}, at::kLong);
  const auto program = [=]() -> Program {
    return {[=](int call) -> Tensors {
      const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
      return {at::mm(w * call, w), at::relu(w)};
    }};
  };
  EXPECT_EQ(expect_passed(program, rewriting())->fired("autocast"), 0);
  const auto others = [=]() -> Program {
    return {[=](int call) -> Tensors { return {at::mm(doubles * call, doubles), at::mm(ids, ids), at::relu(w)}; }};
  };
  EXPECT_EQ(expect_passed(others, rewriting())->fired("autocast"), 0);
  const auto products = [=]() -> Program { return {[=](int call) -> Tensors { return {at::mm(w * call, w)}; }}; };
  EXPECT_EQ(expect_passed(products, rewriting(at::kBFloat16, {.exact = true}))->fired("autocast"), 0);
  EXPECT_EQ(expect_passed(products, rewriting(at::kBFloat16, {.without = {"autocast"}}))->fired("autocast"), 0);
}

/// Unscaled in the same call: in half, 2^-20 of a gradient would be 0.
TEST(AutocastPass, KeepsGradientsOfParametersInFp32) {
  const at::Tensor start = torch::randn({8, 8}), x = torch::randn({4, 8});
  const auto gradient = [=](Region* region) {
    at::Tensor w = start.clone().requires_grad_();
    at::Tensor kept;
    const auto step = [&] {
      w.mutable_grad() = at::Tensor();
      (at::mm(torch::relu(at::mm(x, w)), w).pow(2).mean() * 0x1p12).backward();
      w.grad().mul_(0x1p-12 * 0x1p-20).mul_(0x1p20);
      kept = at::cat({w.grad().flatten(), w.grad().flatten() * 2}).neg();
    };
    for (int call = 0; call < 4; ++call) region ? region->run(step) : step();
    return kept;
  };
  const auto backend = std::make_shared<PassBackend>(rewriting(at::kHalf));
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  const at::Tensor plain = gradient(nullptr), passed = gradient(&region);
  EXPECT_LE((plain - passed).abs().max().item<double>(), 5e-3 * plain.abs().max().item<double>());
  EXPECT_EQ(backend->reports.back().fired("autocast"), 2 + 3);
}

/// A penalty on gradients, which are themselves differentiated: made in grad mode, as layers' results are.
TEST(AutocastPass, KeepsGradientsThatAreDifferentiatedInFp32) {
  const at::Tensor start = torch::randn({8, 8}), x = torch::randn({4, 8});
  const auto penalty = [=](Region* region) {
    at::Tensor w = start.clone().requires_grad_();
    at::Tensor kept;
    const auto step = [&] {
      const at::Tensor loss = torch::relu(at::mm(x, w)).pow(2).mean() * 0x1p12;
      const at::Tensor gradient = torch::autograd::grad({loss}, {w}, {}, true, true)[0];
      kept = ((gradient * (0x1p-12 * 0x1p-20)).pow(2).sum().sqrt() * 0x1p20).detach();
    };
    for (int call = 0; call < 4; ++call) region ? region->run(step) : step();
    return kept;
  };
  RegionOptions options;
  options.backend = std::make_shared<PassBackend>(rewriting(at::kHalf));
  Region region(options);
  const double plain = penalty(nullptr).item<double>(), passed = penalty(&region).item<double>();
  EXPECT_NEAR(passed, plain, 5e-3 * plain);
}

TEST(AutocastPass, CastsBiasesOfOneNumber) {
  const at::Tensor w = torch::randn({8, 8}), bias = torch::randn({});
  expect_autocast([&](const at::Tensor& x) { return at::addmm(bias, x, w); }, torch::randn({4, 8}));
  expect_autocast([&](const at::Tensor& x) { return at::baddbmm(bias, x.unsqueeze(0), w.unsqueeze(0)); },
                  torch::randn({4, 8}));
}

/// A result that is written later, one that a view of other numbers looks at, one of zero elements.
TEST(AutocastPass, OfWritesAndViews) {
  const at::Tensor w = torch::randn({8, 8}) / 8;
  const auto program = [=]() -> Program {
    const at::Tensor kept = torch::zeros({8, 8});
    return {[=](int call) -> Tensors {
              at::Tensor y = at::mm(w * (call + 1), w);
              const at::Tensor bits = y.view(at::kInt).clone();
              y.select(0, 1).mul_(2);
              kept.add_(at::mm(y, w));
              return {y, (bits >= 0).any(), at::mm(w.narrow(0, 0, 0), w), at::mm(y.t(), kept)};
            },
            [=] { return Tensors{kept}; }};
  };
  expect_passed(program, rewriting(), 0.1);
}

TEST(AutocastPass, RefusesOtherTypes) {
  EXPECT_THAT(error_of([] { autocast_pass(at::kDouble); }), ::testing::HasSubstr("expected bf16 or half"));
  std::vector<Pass> list = passes();
  EXPECT_THAT(error_of([&] { insert_before("none", autocast_pass(at::kHalf), list); }),
              ::testing::HasSubstr("is not in the list"));
}

PassBackend widening(c10::ScalarType dtype = at::kBFloat16) {
  PassBackend backend{PassOptions{.check = true}};
  insert_before("constants", widening_pass(dtype), backend.list);
  return backend;
}

/// The step of a model under autocast, with and without the pass, each compared with fp32.
/// Params: loss – a scalar; parameters – leaves whose gradients are compared
///         share – of eager code's error that is allowed in matrices; gradients of biases are sums of rounded values
std::shared_ptr<PassBackend> expect_closer_to_fp32(const std::function<at::Tensor()>& loss,
                                                   const std::vector<at::Tensor>& parameters, double share) {
  const auto backend = std::make_shared<PassBackend>(widening());
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  const auto results = [&](bool autocast, bool passes) {
    std::vector<at::Tensor> all;
    const auto step = [&] {
      for (const at::Tensor& p : parameters) at::Tensor(p).mutable_grad() = at::Tensor();
      at::Tensor value;
      {
        const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, autocast);
        value = loss();
      }
      value.backward();
      all = {value.detach()};
    };
    passes ? region.run(step) : step();
    for (const at::Tensor& p : parameters) all.push_back(p.grad().clone());
    return all;
  };
  const auto exact = results(false, false), low = results(true, false);
  for (int call = 0; call < 3; ++call) {
    const auto wide = results(true, true);
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_EQ(wide[i].dtype(), low[i].dtype());
      const double scale = exact[i].abs().max().item<double>();
      const double ours = (wide[i] - exact[i]).abs().max().item<double>(),
                   eager = (low[i] - exact[i]).abs().max().item<double>();
      EXPECT_LE(ours, call ? std::max(eager * (wide[i].dim() > 1 ? share : 1.01), 1e-5 * scale) : eager)
          << "call " << call << ", result " << i;
    }
  }
  return backend;
}

TEST(WideningPass, TrainsInFp32UnderAutocast) {
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(96, 128), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({128})), nn::Linear(128, 64));
  const at::Tensor x = torch::randn({256, 96}), target = torch::randint(64, {256}, at::kLong);
  const auto linears = expect_closer_to_fp32([&] { return nn::functional::cross_entropy(net->forward(x), target); },
                                             net->parameters(), 0.25);
  EXPECT_EQ(linears->reports.back().fired("widening"), 5) << linears->programs.back().to_text();

  nn::Sequential images = conv_net();
  const at::Tensor image = torch::randn({16, 3, 8, 8});
  const auto convolutions = expect_closer_to_fp32([&] { return images->forward(image).pow(2).mean(); },
                                                  images->parameters(), 1.01);  // some stay in bf16
  EXPECT_GT(convolutions->reports.back().fired("widening"), 2) << convolutions->programs.back().to_text();
}

/// Attention with 16 columns per head: its matmuls alone would not be worth casts.
TEST(WideningPass, KeepsAttentionInFp32) {
  torch::manual_seed(4);
  nn::Linear projection(128, 3 * 128);
  const at::Tensor x = torch::randn({16 * 65, 128});
  const auto loss = [&] {
    const auto parts = projection->forward(x).view({16, 65, 3, 8, 16}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor weights = at::softmax(at::matmul(parts[0], parts[1].transpose(2, 3)) / 4, -1);
    return at::matmul(weights, parts[2]).pow(2).mean();
  };
  const auto backend = expect_closer_to_fp32(loss, projection->parameters(), 1.01);
  const graph::Program& program = backend->programs.back();
  for (const Instruction& one : program.instructions) {
    if (!one.op || one.op->name != "aten::bmm") continue;
    EXPECT_EQ(one.results[0].operands[0].geometry.dtype, caffe2::TypeMeta::Make<float>()) << program.to_text();
  }
}

/// The input exists in fp32, so that casting it costs more than reading it.
TEST(WideningPass, ReadsLargeInputsInFp32) {
  torch::manual_seed(5);
  nn::Linear linear(1433, 16);
  const at::Tensor x = torch::rand({2708, 1433});
  const auto backend =
      expect_closer_to_fp32([&] { return linear->forward(x).pow(2).mean(); }, linear->parameters(), 1.01);
  EXPECT_EQ(backend->reports.back().fired("widening"), 2) << backend->programs.back().to_text();
}

TEST(WideningPass, KeepsTypesAndSmallMatmuls) {
  const at::Tensor weight = torch::randn({2048, 2048}).to(at::kBFloat16),
                   few = torch::randn({4, 2048}).to(at::kBFloat16), many = torch::randn({512, 2048}).to(at::kBFloat16);
  for (const at::Tensor& x : {few, many}) {
    const auto backend = std::make_shared<PassBackend>(widening());
    RegionOptions options;
    options.backend = backend;
    Region region(options);
    const at::Tensor plain = at::relu(at::matmul(x, weight));
    at::Tensor passed;
    for (int call = 0; call < 3; ++call) region.run([&] { passed = at::relu(at::matmul(x, weight)); });
    EXPECT_EQ(passed.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::allclose(passed, plain, 1e-2, 1e-2));
    EXPECT_EQ(backend->reports.back().fired("widening"), x.size(0) == 512);
  }
}

/// A matrix as the sum of two matrices in bf16: the second one holds what the first one lost.
TEST(WideningPass, RoundsCastsThatOtherOperatorsRead) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({256, 256}), weight = torch::randn({256, 256}).to(at::kBFloat16);
  const auto split = [&] {
    const at::Tensor high = x.to(at::kBFloat16), low = (x - high.to(at::kFloat)).to(at::kBFloat16);
    return at::mm(high, weight).to(at::kFloat) + at::mm(low, weight).to(at::kFloat);
  };
  const at::Tensor exact = at::mm(x.to(at::kDouble), weight.to(at::kDouble));
  const auto backend = std::make_shared<PassBackend>(widening());
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  at::Tensor passed;
  for (int call = 0; call < 3; ++call) region.run([&] { passed = split(); });
  EXPECT_EQ(backend->reports.back().fired("widening"), 2);
  const double error = ((passed - exact).norm() / exact.norm()).item<double>();
  EXPECT_LE(error, 2e-5) << "both products run in fp32, so the sum has 16 bits";
}

/// The weight that was cast changes before the cast value is read again.
TEST(WideningPass, ReadsCastsOfOverwrittenWeights) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({256, 256}).to(at::kBFloat16), start = torch::randn({256, 256});
  at::Tensor weight = start.clone();
  const auto twice = [&] {
    const at::Tensor cast = weight.to(at::kBFloat16), first = at::mm(x, cast);
    weight.add_(100);
    return at::stack({first, at::mm(x, cast)}).to(at::kFloat);
  };
  const at::Tensor plain = twice();
  const auto backend = std::make_shared<PassBackend>(widening());
  RegionOptions options;
  options.backend = backend;
  Region region(options);
  for (int call = 0; call < 3; ++call) {
    weight.copy_(start);
    at::Tensor passed;
    region.run([&] { passed = twice(); });
    EXPECT_TRUE(at::allclose(passed, plain, 1e-2, 0.5)) << "call " << call;
    EXPECT_TRUE(at::equal(weight, start + 100));
  }
  EXPECT_EQ(backend->reports.back().fired("widening"), 2);
}

}  // namespace
}  // namespace bellows::graph::testing
