#include "support.h"

#include <torch/csrc/autograd/engine.h>

namespace bellows::tap::testing {
namespace {

struct OtherEngine : torch::autograd::Engine {
  ~OtherEngine() override { stop(); }
};

torch::autograd::Engine& other_engine() {
  static auto* const made = new OtherEngine;
  return *made;
}

TEST(SavedTensorTap, AForeignEngineIsRefused) {
  auto& present = torch::autograd::Engine::get_default_engine();
  const bool ours = &present != &torch::autograd::Engine::get_base_engine();
  torch::autograd::set_default_engine_stub(&other_engine);
  EXPECT_TRUE(foreign_autograd_engine());
  EXPECT_THROW(SavedTensorGuard(std::make_shared<CopyingTap>()), c10::Error);
  torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
  EXPECT_FALSE(foreign_autograd_engine());
  if (ours) install_saved_tensor_taps();
}

}  // namespace
}  // namespace bellows::tap::testing
