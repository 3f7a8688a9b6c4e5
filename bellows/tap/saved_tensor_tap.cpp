#include "bellows/tap/saved_tensor_tap.h"

#include "bellows/core/mutex.h"
#include "bellows/tap/carried_stack.h"
#include "bellows/tap/saved_tensor_store.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace bellows::tap {
namespace {

/// An installed client and the tensors that it has packed so far.
struct Packer {
  std::shared_ptr<SavedTensorTap> tap;
  PackedStore store;
};

using PackerNode = CarriedNode<Packer, 0xB3>;

/// A leaf that requires gradients, or a view of one.
bool is_parameter(const at::Tensor& tensor) {
  const auto leaf = [](const at::TensorBase& t) { return t.is_leaf() && t.requires_grad(); };
  return leaf(tensor) || (tensor.is_view() && leaf(tensor._base()));
}

thread_local bool graph_wanted = false;

/// Records whether grad mode was on, because clients unpack in no-grad mode.
struct GraphWanted {
  bool outer = std::exchange(graph_wanted, c10::GradMode::is_enabled());
  ~GraphWanted() { graph_wanted = outer; }
};

/// Represents one saved tensor in the graph.
class TapHooks final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    version_ = tensor.unsafeGetTensorImpl()->version_counter();
    saved_version_ = version_.current_version();
    // Do not keep the variable itself: an operator's saved output would own the node that owns it.
    const at::Tensor data = tensor.tensor_data();
    if (!is_parameter(tensor) && tensor.layout() == c10::kStrided && tensor.has_storage()) pack(data);
    if (!packed_) kept_ = data;
  }

  at::Tensor call_unpack_hook() override {
    // libtorch does not check the version of tensors with hooks.
    TORCH_CHECK(version_.current_version() == saved_version_,
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                "saved tensor of sizes ",
                layout_ ? c10::IntArrayRef(layout_->sizes) : kept_.sizes(), " is at version ",
                version_.current_version(), "; expected version ", saved_version_, " instead.");
    if (!packed_) return kept_;
    const GraphWanted graph_for_client;
    c10::NoGradGuard no_grad;
    return layout_->restore(packed_->unpack());
  }

 private:
  void pack(const at::Tensor& data) {
    SavedLayout layout(data);
    if (!data.is_non_overlapping_and_dense() && !layout.restorable()) return;
    const PackerNode* top = PackerNode::top();
    for (auto node = top->all.rbegin(); node != top->all.rend() && !packed_; ++node) {
      if ((*node)->active) packed_ = (*node)->client->store.pack_once(*(*node)->client->tap, data, layout);
    }
    if (packed_) layout_ = std::move(layout);
  }

  c10::VariableVersion version_;
  uint32_t saved_version_ = 0;
  at::Tensor kept_;
  std::shared_ptr<PackedTensor> packed_;
  std::optional<SavedLayout> layout_;
};

class TapEngine final : public torch::autograd::Engine {
 public:
  ~TapEngine() override { stop(); }

  /// libtorch starts the engine's threads once per process, for the engine that runs the first backward. If that was
  /// the base engine, this engine uses its queues, too.
  void adopt_threads() {
    if (thread_pool_shared_) return;
    Engine& base = get_base_engine();
    thread_pool_shared_ = base.*(&TapEngine::thread_pool_shared_);
    device_ready_queues_ = base.*(&TapEngine::device_ready_queues_);
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return PackerNode::top() ? std::make_unique<TapHooks>() : nullptr;
  }
};

TapEngine& the_tap_engine() {
  static auto* const made = new TapEngine;  // never destroyed: autograd's workers may wait on it until the process ends
  return *made;
}

torch::autograd::Engine& tap_engine() {
  return the_tap_engine();
}

}  // namespace

bool saved_tensor_tap_installed() {
  const PackerNode* top = PackerNode::top();
  return top &&
         std::any_of(top->all.begin(), top->all.end(), [](const PackerNode* node) { return node->active.load(); });
}

bool unpacking_for_graph() {
  return graph_wanted;
}

bool foreign_autograd_engine() {
  const auto* current = &torch::autograd::Engine::get_default_engine();
  return current != &tap_engine() && current != &torch::autograd::Engine::get_base_engine();
}

void install_saved_tensor_taps() {
  if (&torch::autograd::Engine::get_default_engine() == &tap_engine()) return;
  TORCH_CHECK(
      !foreign_autograd_engine(),
      "install_saved_tensor_taps: expected the autograd engine of libtorch, found another engine. Python's torch "
      "replaces the engine when it is loaded. Saved-tensor taps work only in processes without Python's torch.");
  static Mutex& mutex = *new Mutex;  // ranks that are threads may all be the first to need the engine
  MutexLock lock(mutex);
  the_tap_engine().adopt_threads();
  torch::autograd::set_default_engine_stub(&tap_engine);
}

SavedTensorGuard::SavedTensorGuard(std::shared_ptr<SavedTensorTap> tap) {
  TORCH_CHECK_VALUE(tap, "SavedTensorGuard: expected a tap, found null. Pass a std::make_shared<…>().");
  install_saved_tensor_taps();
  auto packer = std::make_shared<Packer>();
  packer->tap = std::move(tap);
  auto node = std::make_shared<PackerNode>(std::move(packer));
  node_ = node;
  PackerNode::push(node);
}

SavedTensorGuard::~SavedTensorGuard() {
  PackerNode::end(std::static_pointer_cast<PackerNode>(node_), "SavedTensorGuard");
}

}  // namespace bellows::tap
