// Random small programs: gradients, buffers and generators are those of the plain run, whatever is kept, left out, or away.
#include <gtest/gtest.h>

#include <random>

#include "tests/recompute/support.h"

namespace bellows::recompute::testing {

namespace {

constexpr int64_t side = 6;

/// Reads and writes memory past the operators.
struct RawSquare : torch::autograd::Function<RawSquare> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor in = x.contiguous(), out = torch::empty_like(in);
    for (int64_t i = 0; i < in.numel(); ++i) {
      const float value = in.const_data_ptr<float>()[i];
      out.mutable_data_ptr<float>()[i] = value * value;
    }
    context->save_for_backward({in});
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2 * context->get_saved_variables()[0]};
  }
};

struct Buffers {
  at::Tensor mean = torch::zeros({side}), var = torch::ones({side}), count = torch::zeros({1});
};

struct Instruction {
  int code, a, b;  ///< a and b count back from the newest value
  std::vector<Instruction> inner;
};

std::vector<Instruction> random_program(std::mt19937& random, int length, int depth) {
  std::vector<Instruction> program;
  program.reserve(static_cast<size_t>(length));
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < length; ++i) {
    Instruction next{below(25), below(4), below(6), {}};
    if (next.code == 24 && depth > 0) next.inner = random_program(random, 4, depth - 1);
    if (next.code == 23 && below(3) > 0) next.code = 8;  // not in every program
    program.push_back(std::move(next));
  }
  return program;
}

/// How the regions of a program are called.
using Region = std::function<std::vector<at::Tensor>(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>&, const std::vector<at::Tensor>&)>;

std::vector<at::Tensor> run(const std::vector<Instruction>& program, std::vector<at::Tensor> values,
                            const std::shared_ptr<Buffers>& buffers, const Region& region);

at::Tensor in_place(int code, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor fresh = code == 9 ? a + b : code == 10 ? a.clone() : torch::empty_like(a);
  if (code == 9) return fresh.relu_();
  if (code == 10) {
    fresh.narrow(0, 1, 2).mul_(0.5);
    const at::Tensor seen = fresh.sum();
    return fresh.add_(b, 0.1) + seen.detach();
  }
  fresh.copy_(a).mul_(0.5).add_(b);
  return fresh.sigmoid_();
}

at::Tensor with_buffers(int code, const at::Tensor& a, const std::shared_ptr<Buffers>& buffers) {
  if (code == 12) return torch::batch_norm(a, {}, {}, buffers->mean, buffers->var, true, 0.2, 1e-5, false).relu_();
  const at::NoGradGuard guard;
  buffers->count.mul_(0.5).add_(a.detach().mean());
  return a + 1;
}

at::Tensor computed(int code, const at::Tensor& a, const at::Tensor& b) {
  switch (code) {
    case 0:
      return a + b;
    case 1:
      return a * b;
    case 2:
      return a.matmul(b) * 0.3;
    case 3:
      return a.sin();
    case 4:
      return a.tanh();
    case 5:
      return torch::gelu(a);
    case 6:
      return a.softmax(1);
    case 7:
      return torch::layer_norm(a, {side}, {}, {});
    default:
      return torch::dropout(a, 0.4, true);
  }
}

at::Tensor viewed(int code, const at::Tensor& a, const at::Tensor& b) {
  switch (code) {
    case 14:
      return a.t();
    case 15:
      return torch::cat({a.narrow(0, 0, 3), b.narrow(0, 3, 3)});
    case 16:
      return torch::cat({a.chunk(2, 1)[1], b.chunk(2, 1)[0]}, 1);
    case 17:
      return std::get<0>(a.sort(1)) + b;
    case 18:
      return a * torch::rand_like(b);
    case 19:
      return a.mean(1, true).expand({side, side}) * b;
    case 20:
      return a.detach().sum().item<float>() > 0 ? a * 0.7 : b - a;
    case 21:
      return torch::dropout(a.mul(1.5).relu_(), 0.3, true);
    case 22:
      return torch::addcmul(a, b, b, 0.1).cos();
    default:
      return RawSquare::apply(a.tanh());
  }
}

at::Tensor result_of(const Instruction& i, const at::Tensor& a, const at::Tensor& b,
                     const std::shared_ptr<Buffers>& buffers) {
  if (i.code < 9) return computed(i.code, a, b);
  if (i.code < 12) return in_place(i.code, a, b);
  return i.code < 14 ? with_buffers(i.code, a, buffers) : viewed(i.code, a, b);
}

std::vector<at::Tensor> run(const std::vector<Instruction>& program, std::vector<at::Tensor> values,
                            const std::shared_ptr<Buffers>& buffers, const Region& region) {
  for (const Instruction& next : program) {
    const auto back = [&](int n) { return values[values.size() - 1 - static_cast<size_t>(n) % values.size()]; };
    if (next.code != 24) {
      values.push_back(result_of(next, back(next.a), back(next.b), buffers));
      continue;
    }
    const auto inner = [next, buffers, region](const std::vector<at::Tensor>& inputs) {
      auto all = run(next.inner, inputs, buffers, region);
      return std::vector<at::Tensor>{all.back(), all[all.size() / 2] * 2};
    };
    for (const at::Tensor& output : region(inner, {back(next.a), back(next.b)})) values.push_back(output);
  }
  return values;
}

/// Gradients and all else of some steps of a program whose parts are regions.
std::vector<at::Tensor> observed(unsigned seed, const Region& region, int steps) {
  std::mt19937 random(seed + 30);
  std::vector<std::vector<Instruction>> parts;
  for (int part = 0; part < 3; ++part) parts.push_back(random_program(random, 7, 2));
  const auto buffers = std::make_shared<Buffers>();
  torch::manual_seed(seed);
  const std::vector<at::Tensor> leaves{torch::randn({side, side}, torch::requires_grad()),
                                       torch::randn({side, side}, torch::requires_grad())};
  std::vector<at::Tensor> result;
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> values{leaves[0] * 1, leaves[1]};
    for (const auto& part : parts) {
      const auto run_part = [part, buffers, region](const std::vector<at::Tensor>& inputs) {
        auto all = run(part, inputs, buffers, region);
        return std::vector<at::Tensor>{all.back(), all[all.size() - 2]};
      };
      values = region(run_part, values);
    }
    const at::Tensor loss = (values[0] * values[1]).sum();
    if (!loss.requires_grad()) continue;
    for (const bool retain : {true, false}) {
      const auto gradients = torch::autograd::grad({loss}, leaves, {}, retain, false, true);
      result.insert(result.end(), gradients.begin(), gradients.end());
    }
  }
  for (const at::Tensor& t : {buffers->mean, buffers->var, buffers->count, torch::rand({4})}) result.push_back(t);
  return result;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && at::equal(a.contiguous().view(at::kInt), b.contiguous().view(at::kInt));
}

Region checkpointed_by(const CheckpointOptions& options) {
  return [options](const auto& function, const auto& inputs) { return checkpoint(options, function, inputs); };
}

/// Some of all, by the name of the operator.
CheckpointPolicy mixed(const CheckpointOp& op) {
  return static_cast<CheckpointPolicy>((op.name.size() * 7 + op.outputs.size()) % 5);
}

std::vector<at::Tensor> direct(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
                               const std::vector<at::Tensor>& inputs) {
  return function(inputs);
}

/// Sees all and wants nothing: every tensor is too small for it.
std::shared_ptr<void> idle_compress() {
  return std::make_shared<CompressGuard>(CompressOptions{.min_size = side * side + 1});
}

void expect_same_bits(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                      const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) ASSERT_TRUE(same_bits(found[i], expected[i])) << what << ", tensor " << i;
}

}  // namespace

TEST(Programs, AreTheSameHoweverTheyAreRecomputed) {
  struct Way {
    std::string name;
    Region region;
    std::function<std::shared_ptr<void>()> guard;
  };
  const auto none = [] { return nullptr; };
  const std::vector<Way> ways{
      {"checkpoint", checkpointed_by({}), none},
      {"offloaded", checkpointed_by({}), [] { return std::make_shared<OffloadGuard>(OffloadOptions{.min_bytes = 1}); }},
      {"values checked", checkpointed_by({.budget = 0.5, .check_values = true}), none},
      {"policy", checkpointed_by({.policy = mixed}),
       [] { return std::make_shared<OffloadGuard>(OffloadOptions{.min_bytes = 1}); }},
      {"budget of each", checkpointed_by({.budget = 0.4, .early_stop = false}), none},
      {"budget", checkpointed_by({}), [] { return std::make_shared<BudgetGuard>(0.4); }},
      {"bytes", checkpointed_by({}), [] { return std::make_shared<BudgetGuard>(BudgetOptions{.target_bytes = 1500}); }},
      {"idle compress", direct, idle_compress},
      {"idle compress around", checkpointed_by({}), idle_compress},
  };
  for (unsigned seed = 0; seed < 25; ++seed) {
    const auto expected = observed(seed, direct, 5);
    for (const Way& way : ways) {
      const auto guard = way.guard();
      expect_same_bits(observed(seed, way.region, 5), expected, way.name + ", program " + std::to_string(seed));
    }
  }
}

TEST(Programs, RoundAlikeInEveryRun) {
  int changed = 0;
  for (const auto bits : {ActivationBits::int8, ActivationBits::int4}) {
    for (unsigned seed = 0; seed < 25; ++seed) {
      const auto rounded = [&](uint64_t rounding) {
        const CompressGuard guard({.bits = bits, .group = 32, .min_size = 1, .seed = rounding});
        return observed(seed, direct, 2);
      };
      const auto expected = rounded(seed);
      expect_same_bits(rounded(seed), expected, "program " + std::to_string(seed));
      const auto other = rounded(seed + 1);
      for (size_t i = 0; i < other.size(); ++i) changed += !same_bits(other[i], expected[i]);
    }
  }
  EXPECT_GT(changed, 100);  // it was not idle
}

}  // namespace bellows::recompute::testing
