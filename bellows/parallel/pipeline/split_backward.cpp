#include "bellows/parallel/pipeline/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace bellows::parallel {

namespace {

namespace ag = torch::autograd;
using Nodes = std::vector<ag::Node*>;

/// The nodes of a graph, and for each node the nodes that pass gradients to it.
struct BackwardGraph {
  std::unordered_map<ag::Node*, Nodes> users;
  Nodes leaves;  ///< nodes that add to the gradients of leaf tensors

  explicit BackwardGraph(ag::Node* root) {
    Nodes open = {root};
    users[root];
    while (!open.empty()) {
      ag::Node* node = open.back();
      open.pop_back();
      if (dynamic_cast<ag::AccumulateGrad*>(node)) leaves.push_back(node);
      for (const ag::Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) continue;
        const auto [found, added] = users.try_emplace(edge.function.get());
        if (added) open.push_back(edge.function.get());
        found->second.push_back(node);
      }
    }
  }

  /// Returns the nodes from which gradients flow to `target`, including itself.
  std::unordered_set<ag::Node*> leading_to(ag::Node* target) const {
    std::unordered_set<ag::Node*> result = {target};
    for (Nodes open = {target}; !open.empty();) {
      const Nodes& above = users.at(open.back());
      open.pop_back();
      for (ag::Node* node : above) {
        if (result.insert(node).second) open.push_back(node);
      }
    }
    return result;
  }

  /// Returns the nodes of `main` that are the first ones on paths from `leaf` upward.
  std::unordered_set<ag::Node*> branches_of(ag::Node* leaf, const std::unordered_set<ag::Node*>& main) const {
    std::unordered_set<ag::Node*> branches, seen = {leaf};
    for (Nodes open = {leaf}; !open.empty();) {
      const Nodes& above = users.at(open.back());
      open.pop_back();
      for (ag::Node* node : above) {
        if (main.count(node)) {
          branches.insert(node);
        } else if (seen.insert(node).second) {
          open.push_back(node);
        }
      }
    }
    return branches;
  }
};

struct Captured {
  ag::variable_list gradients;
  bool open = true;
};

class CaptureHook final : public ag::FunctionPreHook {
 public:
  explicit CaptureHook(std::shared_ptr<Captured> captured) : captured_(std::move(captured)) {}
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    if (captured_->open) captured_->gradients = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<Captured> captured_;
};

void run_engine(const ag::edge_list& roots, const ag::variable_list& gradients, const ag::edge_list& leaves) {
  ag::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/true, /*create_graph=*/false,
                                           /*accumulate_grad=*/true, leaves);
}

}  // namespace

struct SplitBackward::State {
  /// A node at which paths to weights leave the path to the input.
  struct Branch {
    ag::Node* node;
    ag::edge_list leaves;
    std::shared_ptr<Captured> captured = std::make_shared<Captured>();
  };
  at::Tensor output;  ///< keeps the graph alive
  std::vector<Branch> branches;

  void add(ag::Node* node, ag::Node* leaf) {
    for (Branch& branch : branches) {
      if (branch.node == node) {
        branch.leaves.emplace_back(leaf->getptr(), 0);
        return;
      }
    }
    Branch& branch = branches.emplace_back(Branch{.node = node, .leaves = {ag::Edge(leaf->getptr(), 0)}});
    // Before all hooks of the node, which run again when weights() starts at the node.
    auto& hooks = node->tensor_pre_hooks();
    hooks.insert(hooks.begin(), std::make_unique<CaptureHook>(branch.captured));
  }
};

SplitBackward::SplitBackward(const at::Tensor& output, const at::Tensor& gradient, const at::Tensor& input)
    : state_(std::make_unique<State>()) {
  state_->output = output;
  const ag::Edge root = ag::impl::gradient_edge(output), end = ag::impl::gradient_edge(input);
  const BackwardGraph graph(root.function.get());
  TORCH_CHECK_VALUE(graph.users.count(end.function.get()) != 0,
                    "backward_input: the output of the stage does not depend on its input. Its previous stages would "
                    "get no gradient. Check the order of the model's parts.");
  const auto main = graph.leading_to(end.function.get());
  ag::edge_list now = {end};
  for (ag::Node* leaf : graph.leaves) {
    if (leaf == end.function.get()) continue;
    const auto branches = graph.branches_of(leaf, main);
    if (branches.size() == 1) {
      state_->add(*branches.begin(), leaf);
    } else {
      now.emplace_back(leaf->getptr(), 0);  // a path between two branches would count a gradient twice
    }
  }
  run_engine({root}, {gradient}, now);
  for (State::Branch& branch : state_->branches) branch.captured->open = false;
}

SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

void SplitBackward::weights() {
  for (State::Branch& branch : state_->branches) {
    ag::edge_list roots;
    ag::variable_list gradients;
    for (size_t i = 0; i < branch.captured->gradients.size(); ++i) {
      if (!branch.captured->gradients[i].defined()) continue;
      roots.emplace_back(branch.node->getptr(), static_cast<uint32_t>(i));
      gradients.push_back(std::move(branch.captured->gradients[i]));
    }
    if (!roots.empty()) run_engine(roots, gradients, branch.leaves);
  }
  state_.reset();
}

}  // namespace bellows::parallel
