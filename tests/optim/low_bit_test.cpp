// State of 8 and 4 bits: against bitsandbytes, saved and loaded, and what goes wrong; rounding at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "bellows/core/error.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/state/python_state.h"
#include "bellows/optim/state/state.h"
#include "tests/optim/support.h"
#include "tests/support/errors.h"

namespace bellows::optim {

namespace {

using testing::HasSubstr;
using LowBitTensors = std::vector<at::Tensor>;
using LowBitJson = nlohmann::json;

/// The formula of tools/goldens/low_bit.py.
at::Tensor low_bit_golden(int step, int64_t columns) {
  const at::Tensor i = torch::arange(40 * columns, at::kDouble);
  return (torch::sin(0.7 * i + 2.1 * step) * torch::exp(torch::sin(0.013 * i))).to(at::kFloat).view({40, columns});
}

/// Blocks with a rest, channels-last, one that stays in fp32.
LowBitTensors low_bit_parameters(at::ScalarType type = at::kFloat, bool row_major = false) {
  torch::manual_seed(31);
  LowBitTensors result = {torch::randn({50, 101}), torch::randn({32, 16, 3, 3}), torch::randn({17})};
  if (!row_major) result[1] = result[1].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& p : result) p = p.to(type).requires_grad_(true);
  return result;
}

void low_bit_steps(torch::optim::Optimizer& optimizer, const LowBitTensors& parameters, int first, int last) {
  for (int step = first; step < last; ++step) {
    torch::manual_seed(static_cast<uint64_t>(100 + step));
    for (const at::Tensor& p : parameters) p.mutable_grad() = torch::randn_like(p);
    optimizer.step();
  }
}

template <class Optimizer, class Options>
std::unique_ptr<LibtorchOptimizer> low_bit_optimizer(const LowBitTensors& p, Options options) {
  return std::make_unique<Optimizer>(p, options);
}

using LowBitMake = std::function<std::unique_ptr<LibtorchOptimizer>(const LowBitTensors&)>;

struct LowBitCase {
  const char* name;
  at::ScalarType type;
  bool row_major;
  LowBitMake make;
};
void PrintTo(const LowBitCase& c, std::ostream* out) {
  *out << c.name;
}

std::vector<LowBitCase> low_bit_cases() {
  const auto adamw = [](State state, bool masters, bool random) {
    return [=](const LowBitTensors& p) {
      return low_bit_optimizer<AdamW>(
          p, AdamWOptions{.lr = 0.01, .master_weights = masters, .state_dtype = state, .stochastic_rounding = random});
    };
  };
  return {{"int8", at::kFloat, false, adamw(State::int8, false, false)},
          {"int4", at::kFloat, true, adamw(State::int4, false, false)},
          {"int8_masters", at::kBFloat16, false, adamw(State::int8, true, false)},
          {"int8_random", at::kBFloat16, false, adamw(State::int8, false, true)},
          {"random", at::kBFloat16, false, adamw(State::automatic, false, true)},
          {"sgd", at::kFloat, false,
           [](const LowBitTensors& p) {
             return low_bit_optimizer<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9, .state_dtype = State::int8});
           }},
          {"lion", at::kHalf, false, [](const LowBitTensors& p) {
             return low_bit_optimizer<Lion>(p, LionOptions{.lr = 0.01, .state_dtype = State::int8});
           }}};
}

class LowBitState : public testing::TestWithParam<LowBitCase> {};

}  // namespace

// A code that falls on the other side of a middle moves a moment by up to a hundredth of its size, and that a parameter
// by so much of a step; both round at other places. That happens to a few of 5200 elements in 25 steps.
TEST(LowBitGolden, GoesWhereBitsandbytesAndTorchaoGo) {
  std::ifstream file(BELLOWS_SOURCE_DIR "/tests/goldens/optim/low_bit.json");
  const LowBitJson golden = LowBitJson::parse(file);
  for (const auto& [name, entry] : golden.at("cases").items()) {
    const bool four = entry.at("bits") == 4;
    const at::Tensor p = low_bit_golden(0, four ? 128 : 130).requires_grad_(true);
    const auto optimizer =
        make_low_bit(entry.at("class"), entry.at("options"), LowBitTensors{p}, four ? State::int4 : State::int8);
    for (int step = 1; step <= 25; ++step) {
      p.mutable_grad() = low_bit_golden(step, p.size(1));
      optimizer->step();
      if (!entry.at("values").contains(std::to_string(step))) continue;
      const at::Tensor python =
          torch::tensor(entry.at("values").at(std::to_string(step)).get<std::vector<double>>(), at::kDouble);
      const at::Tensor error = (p.detach().flatten().slice(0, 0, std::nullopt, 41).to(at::kDouble) - python).abs();
      EXPECT_LE(error.max().item<double>(), 1e-3) << name << ", step " << step;
      EXPECT_LE(error.mean().item<double>(), 2e-6) << name << ", step " << step;
    }
  }
}

TEST(LowBitMemory, IsAByteAMomentAndAScaleABlock) {
  for (const auto& [state, limit] : {std::pair{State::int8, 2.04}, std::pair{State::int4, 1.07}}) {
    const LowBitTensors p = {torch::randn({1000, 1000}).requires_grad_(true)};
    AdamW optimizer(p, {.state_dtype = state});
    low_bit_steps(optimizer, p, 0, 1);
    double bytes = 0;
    for (const auto& [name, tensor] : state_dict(optimizer)) {
      if (name.starts_with("state.")) bytes += static_cast<double>(tensor.nbytes());
    }
    EXPECT_LE(bytes / 1e6, limit);
    EXPECT_GT(bytes / 1e6, limit - 0.05);
  }
}

TEST_P(LowBitState, GoesOnWithTheSameBits) {
  const LowBitTensors straight = low_bit_parameters(GetParam().type, GetParam().row_major);
  const auto reference = GetParam().make(straight);
  low_bit_steps(*reference, straight, 0, 6);
  for (const char* way : {"names", "archive", "python"}) {
    SCOPED_TRACE(way);
    const LowBitTensors broken = low_bit_parameters(GetParam().type, GetParam().row_major);
    const auto first = GetParam().make(broken), second = GetParam().make(broken);
    low_bit_steps(*first, broken, 0, 3);
    if (std::string(way) == "names") {
      load_state_dict(*second, state_dict(*first));
    } else if (std::string(way) == "archive") {
      std::stringstream archive;
      torch::save(*first, archive);
      torch::load(*second, archive);
    } else if (reference->master_weight(straight[0]).defined()) {
      continue;  // Python's files have no place for them
    } else {
      const std::string path = testing::TempDir() + c10::str("/low_bit_state_", getpid(), ".pt");
      io::torch_save(path, python_state_dict(*first));
      load_python_state_dict(*second, io::torch_load(path));
      std::filesystem::remove(path);
    }
    low_bit_steps(*second, broken, 3, 6);
    for (size_t i = 0; i < straight.size(); ++i) EXPECT_TRUE(torch::equal(straight[i], broken[i])) << i;
  }
}

TEST_P(LowBitState, StepsAsTheScaleSays) {
  const LowBitTensors scaled = low_bit_parameters(GetParam().type, GetParam().row_major);
  const LowBitTensors plain = low_bit_parameters(GetParam().type, GetParam().row_major);
  const auto a = GetParam().make(scaled), b = GetParam().make(plain);
  EXPECT_TRUE(a->takes_grad_scale());
  for (int step = 0; step < 3; ++step) {
    low_bit_steps(*b, plain, step, step + 1);
    for (size_t i = 0; i < plain.size(); ++i) scaled[i].mutable_grad() = plain[i].grad() * 512;
    if (step == 1) {
      a->set_grad_scale(torch::tensor(512.0f), torch::tensor(1.0f));
      a->step();  // overflowed: nothing may change
    }
    a->set_grad_scale(torch::tensor(512.0f), torch::tensor(0.0f));
    a->step();
  }
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(scaled[i], plain[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(All, LowBitState, testing::ValuesIn(low_bit_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(LowBit, SmallTensorsStayAsTheyWere) {
  const LowBitTensors ours = {torch::ones({63, 65}).requires_grad_(true)},
                      plain = {torch::ones({63, 65}).requires_grad_(true)};
  AdamW low(ours, {.state_dtype = State::int8}), fp32(plain, {});
  low_bit_steps(low, ours, 0, 3);
  low_bit_steps(fp32, plain, 0, 3);
  EXPECT_TRUE(torch::equal(ours[0], plain[0]));
  const LowBitTensors all = {torch::ones({3}).requires_grad_(true)};
  AdamW every(all, {.state_dtype = State::int8, .min_8bit_size = 0});
  low_bit_steps(every, all, 0, 1);
  EXPECT_EQ(every.state_dtype(all[0]), at::kByte);
  EXPECT_EQ(every.state_scales(all[0])[1].numel(), 1);
}

TEST(LowBit, WhatIsNotFiniteStaysWithItsElement) {
  const LowBitTensors p = low_bit_parameters();
  AdamW optimizer(p, {.lr = 0.01, .state_dtype = State::int8});
  low_bit_steps(optimizer, p, 0, 2);
  const at::Tensor before = p[0].detach().clone();
  for (const at::Tensor& q : p) q.mutable_grad() = torch::ones_like(q);
  p[0].grad().view(-1)[7] = std::numeric_limits<float>::quiet_NaN();
  p[0].grad().view(-1)[300] = std::numeric_limits<float>::infinity();
  optimizer.step();
  const at::Tensor moved = (p[0].detach() != before).view(-1);
  EXPECT_EQ(moved.sum().item<int64_t>(), p[0].numel() - 2);
  EXPECT_FALSE(moved[7].item<bool>() || moved[300].item<bool>());
  for (const auto& [name, tensor] : state_dict(optimizer))
    EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << name;
}

/// Its second moment lies far below its block's largest; were it rounded to zero, the second step would be lr · m / epsilon.
TEST(LowBit, AGradientThatVanishesMakesNoLongStep) {
  for (const State dtype : {State::int8, State::int4}) {
    const LowBitTensors p = {torch::zeros({8192}).requires_grad_(true)};
    AdamW optimizer(p, {.lr = 0.01, .weight_decay = 0, .state_dtype = dtype});
    for (const float small : {1e-4f, 0.0f, 0.0f}) {
      p[0].mutable_grad() = torch::ones({8192});
      p[0].grad().view({-1, 64}).select(1, 3).fill_(small);
      const at::Tensor before = p[0].detach().clone();
      optimizer.step();
      EXPECT_LE((p[0].detach() - before).abs().max().item<double>(), 2 * 0.01) << small;
    }
  }
}

TEST(LowBit, ClipsSchedulesAndTakesATensorAsRate) {
  const LowBitTensors clipped = low_bit_parameters(), tensor = low_bit_parameters();
  AdamW a(clipped, {.lr = 0.5, .state_dtype = State::int8}), b(tensor, {.lr = 0.5, .state_dtype = State::int8});
  set_lr(a, 0.25);
  b.set_lr_tensor(torch::tensor(0.25, at::kDouble));
  for (size_t i = 0; i < clipped.size(); ++i)
    clipped[i].mutable_grad() = torch::full_like(clipped[i], 3),
    tensor[i].mutable_grad() = torch::full_like(tensor[i], 3);
  clip_and_step(a, 1);
  clip_and_step(b, 1);
  for (size_t i = 0; i < clipped.size(); ++i) EXPECT_TRUE(torch::equal(clipped[i], tensor[i]));
}

TEST(LowBit, AStateThatDoesNotFitIsRefusedAndNothingChanges) {
  const LowBitTensors p = low_bit_parameters(at::kFloat, /*row_major=*/true);
  AdamW int8(p, {.lr = 0.01, .state_dtype = State::int8}), fp32(p, {.lr = 0.02}),
      int4(p, {.lr = 0.03, .state_dtype = State::int4});
  AdamW large(p, {.lr = 0.04, .state_dtype = State::int8, .min_8bit_size = 5000});
  SGD sgd(p, {.lr = 0.05, .momentum = 0.9, .state_dtype = State::int8});
  low_bit_steps(int8, p, 0, 1), low_bit_steps(fp32, p, 0, 1), low_bit_steps(int4, p, 0, 1);
  low_bit_steps(large, p, 0, 1), low_bit_steps(sgd, p, 0, 1);
  const auto refused = [&](LibtorchOptimizer& to, const NamedTensors& state, const char* text) {
    NamedTensors before;
    for (const auto& [name, tensor] : state_dict(to)) before.emplace_back(name, tensor.clone());
    EXPECT_THAT(message_of([&] { load_state_dict(to, state); }), HasSubstr(text));
    const NamedTensors after = state_dict(to);
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::equal(before[i].second, after[i].second));
  };
  refused(fp32, state_dict(int8), "keeps floating-point state");
  refused(int8, state_dict(fp32), "keeps low-bit state");
  refused(int8, state_dict(int4), "another block size or state_dtype");
  refused(int8, state_dict(large), "min_8bit_size");
  refused(int8, state_dict(sgd), "another optimizer");
  NamedTensors other = state_dict(int8);
  for (auto& [name, tensor] : other) {
    if (name.ends_with("absmax")) tensor = tensor.slice(0, 0, std::nullopt, 8);
  }
  refused(int8, other, "another block size");
  std::erase_if(other, [](const auto& entry) { return entry.first == "state.0.exp_avg.absmax"; });
  refused(int8, other, "are missing");
  const LowBitTensors last = low_bit_parameters();
  AdamW channels_last(last, {.state_dtype = State::int8});
  refused(channels_last, state_dict(int8), "follow the memory");
  // The same in libtorch's archives.
  std::stringstream archive;
  torch::save(int8, archive);
  EXPECT_THAT(message_of([&] { torch::load(fp32, archive); }), HasSubstr("for a parameter without low-bit state"));
  EXPECT_EQ(get_lr(fp32), 0.02);
  EXPECT_EQ(fp32.state_dtype(p[0]), at::kFloat);
  low_bit_steps(fp32, p, 1, 2);
}

TEST(LowBit, WhatItCannotDoIsSaidAtOnce) {
  const LowBitTensors p = low_bit_parameters();
  const auto error = [&](AdamWOptions options, const LowBitTensors& parameters) {
    return message_of([&] { AdamW(parameters, options); });
  };
  EXPECT_THAT(error({.amsgrad = true, .state_dtype = State::int8}, p), HasSubstr("amsgrad"));
  EXPECT_THAT(error({.state_dtype = State::int8, .impl = Impl::loop}, p), HasSubstr("only by the fused step"));
  EXPECT_THAT(error({.state_dtype = State::int4}, p), HasSubstr("row-major"));
  EXPECT_THAT(error({.state_dtype = State::int8}, {torch::ones({9}, at::kDouble).requires_grad_(true)}),
              HasSubstr("parameter 0"));
  EXPECT_THAT(error({.master_weights = true, .stochastic_rounding = true}, p), HasSubstr("without master weights"));
  AdamW optimizer(p, {.state_dtype = State::int8});
  EXPECT_THAT(message_of([&] { optimizer.set_impl(Impl::foreach); }), HasSubstr("only by the fused step"));
  EXPECT_EQ(optimizer.impl(), Impl::automatic);
  low_bit_steps(optimizer, p, 0, 1);
  p[1].set_data(p[1].detach().contiguous());
  EXPECT_THAT(message_of([&] { low_bit_steps(optimizer, p, 1, 2); }), HasSubstr("memory layout"));
  SGD sgd({p[0]}, {.momentum = 0.9, .state_dtype = State::int8});
  p[0].mutable_grad() = torch::ones_like(p[0]).to_sparse();
  EXPECT_THAT(message_of([&] { sgd.step(); }), HasSubstr("dense gradients"));
}

// Steps far below half a unit of bf16: to nearest nothing ever moves, at random the mean does as it does in fp32.
TEST(RoundingAtRandom, KeepsSmallStepsOnAverage) {
  const auto train = [](SGDOptions options, at::ScalarType type) {
    const LowBitTensors p = {torch::ones({20000}, type).requires_grad_(true)};
    options.lr = 1e-4;
    SGD sgd(p, options);
    for (int step = 0; step < 50; ++step) {
      p[0].mutable_grad() = torch::ones({20000}, type);
      sgd.step();
    }
    return p[0].detach().to(at::kFloat);
  };
  EXPECT_TRUE(torch::equal(train({}, at::kBFloat16), torch::ones({20000})));
  const at::Tensor random = train({.stochastic_rounding = true}, at::kBFloat16);
  // 50 roundings, each of variance at most (2^-8)² / 4 below 1; the mean of 20000 of them.
  EXPECT_NEAR(random.mean().item<double>(), 1 - 50e-4, 5 * std::sqrt(50) / 512 / std::sqrt(20000));
  EXPECT_TRUE(torch::equal(random, train({.stochastic_rounding = true}, at::kBFloat16)));
  EXPECT_FALSE(torch::equal(random, train({.stochastic_rounding = true, .rounding_seed = 1}, at::kBFloat16)));
  EXPECT_TRUE(torch::equal(train({.stochastic_rounding = true}, at::kFloat), train({}, at::kFloat)));
}

}  // namespace bellows::optim
