// Steps that run out of memory: the run goes on as if the step had been skipped, or the next step says that it cannot.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <new>

#include "bellows/optim/adafactor.h"
#include "bellows/optim/state.h"
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
      const at::Tensor start = torch::linspace(-1, 1, 20 + i).to(c.master_weights ? at::kBFloat16 : at::kFloat);
      parameters.push_back(start.clone().requires_grad_());
    }
    nlohmann::json json = {{"lr", 0.05}, {"weight_decay", 0.01}, {"maximize", c.maximize}, {"min_8bit_size", 1}};
    if (std::string_view(c.name) == "SGD") json["momentum"] = 0.9, json["dampening"] = 0.3;
    if (std::string_view(c.name) == "RMSprop") json["momentum"] = 0.9;
    if (c.state != State::automatic)
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

/// Steps 0 to 3, of which number `failing` fails at its k-th allocation. Returns whether it did.
bool skips_or_refuses(const Case& c, int64_t k, int failing) {
  Training run(c), skipped(c);
  bool fired = false, failed = false;
  for (int step = 0; step < 4; ++step) {
    run.give_gradients(step);
    try {
      if (step == failing) {
        FailAllocation guard(k);
        const auto stop = [&] { fired = guard.fired(), guard.stop(); };
        try {
          run.optimizer->step();
        } catch (...) {
          stop();
          throw;
        }
        stop();
      } else {
        run.optimizer->step();
      }
      if (step != failing || !fired) skipped.step(step);
    } catch (const c10::Error& error) {
      if (step == failing) continue;
      EXPECT_NE(std::string(error.what()).find("Load a checkpoint"), std::string::npos) << error.what();
      return fired;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(step, failing);
      failed = true;
    }
  }
  // libtorch may do without what it could not allocate: then the step took place.
  if (fired && !failed) return true;
  EXPECT_TRUE(same(run, skipped)) << c.name << ", allocation " << k << " of step " << failing;
  return fired;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const char* name : {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion"}) {
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
