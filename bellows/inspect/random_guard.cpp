#include "bellows/inspect/random_guard.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "bellows/core/seed.h"
#include "bellows/inspect/op_info.h"
#include "bellows/system/call_site.h"
#include "bellows/tap/op_check.h"

namespace bellows::inspect {

namespace {

/// libtorch starts with a random seed. It is read before main(), so that a later seed is recognized.
const uint64_t initial_seed = at::globalContext().defaultGenerator(c10::kCPU).current_seed();

bool anybody_seeded() {
  return seeded() || at::globalContext().defaultGenerator(c10::kCPU).current_seed() != initial_seed;
}

/// False if the operator draws nothing with these arguments, or draws from a generator that the caller created and
/// therefore seeded.
bool draws_from_default_generator(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs) {
  const auto& arguments = info.schema->arguments();
  for (size_t i = 0; i < inputs.size() && i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (inputs[i].isGenerator()) return false;
    if ((name == "train" || name == "training") && inputs[i].isBool() && !inputs[i].toBool()) return false;
    if (name == "dropout_p" && inputs[i].isDouble() && inputs[i].toDouble() == 0) return false;
    if (name == "p" && info.name == "aten::native_dropout" && inputs[i].isDouble() && inputs[i].toDouble() == 0)
      return false;
  }
  return true;
}

class RandomCheck : public tap::OpCheck {
 public:
  void check(const tap::OpRef& op, tap::Stack& stack) override {
    const OpInfo& info = op_info(op.handle());
    // A composite can be tagged although it draws nothing in this call (dropout in evaluation); its parts are checked
    // instead.
    if (!info.random || info.composite || anybody_seeded()) return;
    if (!draws_from_default_generator(info, op.arguments(stack))) return;
    const std::string site = call_site();
    TORCH_CHECK_VALUE(false, "RandomGuard: expected a seed before the first random operator, but ", op.qualified_name(),
                      " draws from the unseeded default generator", site.empty() ? "" : ", called at " + site,
                      ". Call bellows::seed_everything(seed) first, or pass a generator.");
  }
};

}  // namespace

struct RandomGuard::Guard {
  tap::OpCheckGuard guard{std::make_shared<RandomCheck>()};
};

RandomGuard::RandomGuard() : guard_(std::make_unique<Guard>()) {}
RandomGuard::~RandomGuard() = default;

}  // namespace bellows::inspect
