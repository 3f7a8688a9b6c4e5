// Steps that run out of memory: the run goes on as if the step had been skipped, or the next step says that it cannot.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <new>
#include <optional>

#include "bellows/amp/grad_scaler.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/gradient_accumulator.h"
#include "bellows/optim/state/state.h"
#include "bellows/optim/step_in_backward.h"
#include "support.h"
#include "tests/support/failing_allocation.h"

namespace bellows::optim {

namespace {

using test::FailAllocation;

struct Case {
  const char* name;
  Impl impl;
  bool maximize = false, master_weights = false;
  State state = State::automatic;
};

class Training {
 public:
  explicit Training(const Case& c) {
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor start =
          torch::linspace(-1, 1, 20 + 2 * i).view({2, -1}).to(c.master_weights ? at::kBFloat16 : at::kFloat);
      parameters.push_back(start.clone().requires_grad_());
    }
    nlohmann::json json = {{"lr", 0.05}, {"weight_decay", 0.01}, {"maximize", c.maximize}, {"min_8bit_size", 1}};
    if (std::string_view(c.name) == "SGD") json["momentum"] = 0.9, json["dampening"] = 0.3;
    if (std::string_view(c.name) == "RMSprop") json["momentum"] = 0.9;
    if (std::string_view(c.name) == "Adafactor")
      optimizer = std::make_unique<Adafactor>(
          parameters,
          AdafactorOptions{.beta1 = 0.9, .maximize = c.maximize, .master_weights = c.master_weights, .impl = c.impl});
    else if (c.state != State::automatic)
      optimizer = make_low_bit(c.name, json, parameters, c.state);
    else
      optimizer = make_optimizer(c.name, json, parameters, c.impl, c.master_weights);
  }
  void give_gradients(int step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto number = static_cast<double>(step + 1) * static_cast<double>(i + 1);
      parameters[i].mutable_grad() = torch::sin(number * (parameters[i].detach() + 1));
    }
  }
  void step(int number) {
    give_gradients(number);
    optimizer->step();
  }

  std::vector<at::Tensor> parameters;
  std::unique_ptr<LibtorchOptimizer> optimizer;
};

bool same(const Training& a, const Training& b) {
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    if (!torch::equal(a.parameters[i], b.parameters[i])) return false;
  }
  return true;
}

/// Runs `action`, which fails at its k-th allocation, and returns whether it did. `threw`: whether that went through.
template <class F>
bool fails_at(int64_t k, bool& threw, const F& action) {
  FailAllocation guard(k);
  try {
    action();
    threw = false;
  } catch (const std::exception&) {
    threw = true;
  }
  guard.stop();
  return guard.fired();
}

/// Steps 0 to 3, of which number `failing` fails at its k-th allocation. Returns whether it did.
bool skips_or_refuses(const Case& c, int64_t k, int failing) {
  Training run(c), expected(c);
  bool fired = false;
  for (int step = 0; step < 4; ++step) {
    run.give_gradients(step);
    bool threw = false;  // libtorch may do without what it could not allocate: then the step took place
    if (step == failing) {
      fired = fails_at(k, threw, [&] { run.optimizer->step(); });
    } else {
      try {
        run.optimizer->step();
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("Load a checkpoint"), std::string::npos) << error.what();
        return fired;
      }
    }
    if (!threw) expected.step(step);
  }
  EXPECT_TRUE(same(run, expected)) << c.name << ", allocation " << k << " of step " << failing;
  return fired;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const char* name : {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "Adafactor"}) {
    for (const Impl impl : {Impl::fused, Impl::foreach, Impl::loop}) {
      result.push_back({name, impl});
      result.push_back({name, impl, /*maximize=*/true});
      result.push_back({name, impl, /*maximize=*/false, /*master_weights=*/true});
    }
  }
  for (const char* name : {"SGD", "Adam", "AdamW", "Lion"}) {
    result.push_back({name, Impl::automatic, false, false, State::int8});
    result.push_back({name, Impl::automatic, false, false, State::int4});
  }
  return result;
}

}  // namespace

TEST(FailedAllocation, SkipsTheStepOrRefusesTheNext) {
  for (const Case& c : cases()) {
    for (const int failing : {0, 2}) {
      int64_t k = 1;
      while (k <= 300 && skips_or_refuses(c, k, failing)) ++k;
      EXPECT_GT(k, 1) << c.name;
    }
  }
}

TEST(FailedAllocation, SmallStateIsSmall) {
  for (const State state : {State::int8, State::int4}) {
    const Training run({"Adam", Impl::automatic, false, false, state});
    EXPECT_EQ(run.optimizer->state_dtype(run.parameters[0]), at::kByte);
  }
}

namespace {

/// One iteration of mixed-precision training, as it is usually written; an exception leaves the rest of it out.
void scaled_iteration(Training& run, amp::GradScaler& scaler, int number, const std::function<void()>& step) {
  for (at::Tensor& p : run.parameters) p.mutable_grad().reset();
  at::Tensor loss = torch::zeros({});
  for (const at::Tensor& p : run.parameters) loss = loss + (p * (number + 1)).sin().sum();
  scaler.scale(loss).backward();
  step();
  scaler.update();
}

/// An iteration whose scaler.step() fails at its k-th allocation; the others follow as if it had not been there.
bool scaler_skips_or_refuses(const Case& c, int64_t k) {
  Training run(c), expected(c);
  amp::GradScaler scaler, expected_scaler;
  bool fired = false;
  for (int number = 0; number < 4; ++number) {
    bool threw = false;
    try {
      scaled_iteration(run, scaler, number, [&] {
        if (number == 1)
          fired = fails_at(k, threw, [&] { scaler.step(*run.optimizer); });
        else
          scaler.step(*run.optimizer);
        if (threw) throw std::bad_alloc();
      });
    } catch (const std::bad_alloc&) {
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("Load a checkpoint"), std::string::npos) << error.what();
      return fired;
    }
    if (!threw) scaled_iteration(expected, expected_scaler, number, [&] { expected_scaler.step(*expected.optimizer); });
  }
  EXPECT_TRUE(same(run, expected)) << c.name << ", allocation " << k;
  return fired;
}

}  // namespace

TEST(FailedAllocation, GradScalerUnscalesTheNextGradients) {
  for (const Impl impl : {Impl::fused, Impl::foreach, Impl::loop}) {
    int64_t k = 1;
    while (k <= 300 && scaler_skips_or_refuses({"Adam", impl}, k)) ++k;
    EXPECT_GT(k, 1);
  }
}

namespace {

/// Throws once, before it has changed anything.
class ThrowsOnce : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (std::exchange(throws, false)) throw std::bad_alloc();
    return SGD::step(std::move(closure));
  }
  bool throws = true;
};

}  // namespace

TEST(FailedAllocation, GradScalerUnscalesAfterAStepThatThrew) {
  const at::Tensor weight = torch::ones({2}).requires_grad_();
  ThrowsOnce optimizer({weight}, torch::optim::SGDOptions(1));
  amp::GradScaler scaler;
  const auto backward = [&](double factor) {
    optimizer.zero_grad();
    scaler.scale((weight * factor).sum()).backward();
  };
  backward(0.25);
  EXPECT_THROW(scaler.step(optimizer), std::bad_alloc);
  backward(0.5);
  scaler.step(optimizer);
  EXPECT_TRUE(torch::equal(weight.detach(), torch::full({2}, 0.5))) << weight;
  scaler.update();
}

namespace {

/// An SGD whose next step, and what is between its parameter's gradient and it, fails at the k-th allocation. A whole backward pass would
/// not do: libtorch ends the program when some of its allocations fail.
class FailingSgd : public SGD {
 public:
  explicit FailingSgd(const at::Tensor& p) : SGD({p, at::ones({2}).requires_grad_()}, {.lr = 0.1, .momentum = 0.9}) {
    p.register_hook([this](const at::Tensor&) {
      if (k > 0) guard_.emplace(std::exchange(k, 0));
    });
  }
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = SGD::step(std::move(closure));
    stop();
    return loss;
  }
  void stop() {
    if (guard_) fired = guard_->fired();
    guard_.reset();
  }
  int64_t k = 0;
  bool fired = false;

 private:
  std::optional<FailAllocation> guard_;
};

void one_pass(const at::Tensor& p, int number) {
  (p * (number + 1)).sin().sum().backward();
}

}  // namespace

TEST(FailedAllocation, StepInBackwardKeepsItsParameters) {
  bool fired = true;
  for (int64_t k = 1; fired && k <= 300; ++k) {
    const at::Tensor p = torch::linspace(-1, 1, 20).requires_grad_(), q = p.detach().clone().requires_grad_();
    FailingSgd run(p), expected(q);
    const auto steps = step_in_backward(run), expected_steps = step_in_backward(expected);
    one_pass(p, 0), one_pass(q, 0);
    run.k = k;
    bool threw = false;
    try {
      one_pass(p, 1);
    } catch (const std::exception&) {
      threw = true;
    }
    run.stop();
    fired = run.fired;
    EXPECT_EQ(run.param_groups()[0].params().size(), 2u) << "allocation " << k;
    p.mutable_grad().reset();
    if (!threw) one_pass(q, 1);
    try {
      one_pass(p, 2);
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("Load a checkpoint"), std::string::npos) << error.what();
      continue;
    }
    one_pass(q, 2);
    EXPECT_TRUE(torch::equal(p, q)) << "allocation " << k;
  }
  EXPECT_FALSE(fired);
}

TEST(FailedAllocation, AccumulationIsSkippedWhole) {
  constexpr int parts = 2;
  const Case c{"AdamW", Impl::fused, false, true};
  const auto accumulate = [](Training& run, int number) {
    for (at::Tensor& p : run.parameters) p.mutable_grad().reset();
    for (int part = 0; part < parts; ++part) {
      for (const at::Tensor& p : run.parameters) one_pass(p, parts * number + part);
    }
  };
  bool fired = true;
  for (int64_t k = 1; fired && k <= 300; ++k) {
    Training run(c), expected(c);
    const GradientAccumulator sums(run.parameters), expected_sums(expected.parameters);
    bool refused = false;
    for (int number = 0; number < 3 && !refused; ++number) {
      accumulate(run, number), accumulate(expected, number);
      bool threw = false;
      try {
        if (number == 1)
          fired = fails_at(k, threw, [&] { run.optimizer->step(); });
        else
          run.optimizer->step();
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("Load a checkpoint"), std::string::npos) << error.what();
        refused = true;
      }
      if (!threw) expected.optimizer->step();
    }
    if (!refused) {
      EXPECT_TRUE(same(run, expected)) << "allocation " << k;
    }
  }
  EXPECT_FALSE(fired);
}

TEST(FailedAllocation, AnAverageIsUpdatedWholeOrNotUsedAgain) {
  int64_t fired = 0;
  for (int64_t k = 1; k <= 300; ++k) {
    torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
    const auto change = [&](double by) {
      const c10::NoGradGuard no_grad;
      for (at::Tensor& p : model->parameters()) p.add_(by);
    };
    const auto wrapped = [&] { return Model("model", model.ptr(), nullptr); };
    AveragedModel average(wrapped(), {.weight = ema_weight(0.5)}), expected(wrapped(), {.weight = ema_weight(0.5)});
    average.update_parameters(), expected.update_parameters();
    change(1);
    bool threw = false;
    fired += fails_at(k, threw, [&] { average.update_parameters(); });
    if (!threw) expected.update_parameters();
    change(1);
    try {
      average.update_parameters();
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("Load a saved average"), std::string::npos) << error.what();
      average.load_state_dict(expected.state_dict());
      average.update_parameters();
    }
    expected.update_parameters();
    for (size_t i = 0; i < expected.averaged().size(); ++i)
      EXPECT_TRUE(torch::equal(average.averaged()[i].second, expected.averaged()[i].second)) << "allocation " << k;
  }
  EXPECT_GT(fired, 0);
}

TEST(FailedAllocation, LoadsAWholeStateOrRefusesTheNextStep) {
  for (const Case& c : {Case{"Adam", Impl::fused}, Case{"AdamW", Impl::fused, false, true},
                        Case{"Lion", Impl::automatic, false, false, State::int8}}) {
    Training source(c);
    source.step(0), source.step(1);
    const NamedTensors saved = state_dict(*source.optimizer);
    for (int64_t k = 1; k <= 300; ++k) {
      Training run(c), expected(c);
      run.step(2), expected.step(2);
      bool threw = false;
      if (!fails_at(k, threw, [&] { load_state_dict(*run.optimizer, saved); })) break;
      if (!threw) load_state_dict(*expected.optimizer, saved);
      try {
        run.step(3);
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("Load a checkpoint"), std::string::npos) << error.what();
        continue;
      }
      expected.step(3);
      EXPECT_TRUE(same(run, expected)) << c.name << ", allocation " << k;
    }
  }
}

TEST(FailedAllocation, LoadedStateEndsTheRefusal) {
  for (int64_t k = 1; k <= 300; ++k) {
    Training run({"Adam", Impl::foreach});
    run.step(0);
    const NamedTensors saved = state_dict(*run.optimizer);
    run.give_gradients(1);
    {
      FailAllocation guard(k);
      try {
        run.optimizer->step();
      } catch (...) {
      }
      if (!guard.fired()) break;
    }
    load_state_dict(*run.optimizer, saved);
    EXPECT_NO_THROW(run.step(2)) << k;
  }
}

}  // namespace bellows::optim
