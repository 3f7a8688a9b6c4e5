#include "bellows/inspect/capture.h"

#include <ATen/record_function.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/inspect/module_tracker.h"
#include "bellows/inspect/op_info.h"
#include "bellows/tap/observer.h"
#include "bellows/tap/sequential_tap.h"

namespace bellows::inspect {

namespace {

using Kind = tap::OpEvent::Kind;
using Tensors = std::vector<at::Tensor>;

/// An output, with its gradient once backward reached it.
struct Captured {
  at::Tensor output;
  at::Tensor copy;  ///< defined if a copy was requested
  uint32_t version = 0;
  std::shared_ptr<at::Tensor> gradient = std::make_shared<at::Tensor>();
};

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

// The hook belongs to the value that the tensor has now: operators in place that follow get other autograd nodes.
Captured captured(const at::Tensor& output, bool copy) {
  const at::DisableRecordFunctionGuard unobserved;
  Captured result{output, copy ? output.detach().clone() : at::Tensor(), version_of(output)};
  if (output.requires_grad()) {
    const std::weak_ptr<at::Tensor> gradient = result.gradient;
    output.register_hook([gradient](const at::Tensor& value) {
      if (const auto kept = gradient.lock()) *kept = value;
    });
  }
  return result;
}

/// An outermost operator of a forward pass.
struct Op {
  std::string name;  ///< such as "add"
  Tensors inputs;
  Tensors outputs;
};

/// A call of a module. `choices` has the operators that may have computed the output.
struct Call {
  std::vector<std::pair<std::string, Captured>> choices;
};

using Names = std::vector<std::string>;
/// For each tensor that an operator reads: the names of its parameter, or null.
using Reads = std::vector<const Names*>;

/// The memory of the model's parameters and buffers.
class ModelMemory {
 public:
  explicit ModelMemory(const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) add(name, tensor);
  }
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.has_storage() || tensor.numel() == 0 || !tensor.const_data_ptr()) return;
    const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    Range& range = ranges_.try_emplace(begin, Range{begin + tensor.nbytes(), {}, tensor}).first->second;
    range.names.push_back(name);
  }
  /// Returns the names of the parameter or buffer to which the tensor's memory belongs, or null. Tied ones have several.
  const Names* names_of(const at::Tensor& tensor) const {
    if (!tensor.has_storage() || tensor.numel() == 0) return nullptr;
    const auto* at = static_cast<const std::byte*>(tensor.const_data_ptr());
    auto range = ranges_.upper_bound(at);
    if (range == ranges_.begin()) return nullptr;
    --range;
    return at < range->second.end ? &range->second.names : nullptr;
  }

 private:
  struct Range {
    const std::byte* end;
    Names names;
    at::Tensor tensor;  ///< keeps the memory, so that no other tensor gets it
  };
  std::map<const std::byte*, Range> ranges_;
};

/// How the output of a module is found among the operators.
enum class Rule { layer, between };

/// A module to capture.
class Target {
 public:
  Target(std::string path, Rule rule, const CaptureOptions& options)
      : path_(std::move(path)), rule_(rule), options_(options) {}

  const std::string& path() const { return path_; }

  /// Receives the outermost operators of a thread in their order.
  void receive(const Op& op, const Reads& reads) {
    const bool own = std::any_of(reads.begin(), reads.end(), [&](auto* names) { return is_own(names); });
    const bool foreign = !own && std::any_of(reads.begin(), reads.end(), [](auto* names) { return names; });
    if (own) return extend_with_parameters(op, reads);
    if (foreign || rule_ == Rule::layer) return close(op.inputs);
    if (open_) extend(op);
  }

  /// Ends the call that is being observed.
  /// Params: next – the tensors that the next operator reads
  void close(const Tensors& next) {
    if (!open_) return;
    open_ = false;
    Call call;
    for (size_t i = 0; i < tail_.size(); ++i) {
      if (tail_[i].captured && carries_all(i, next)) call.choices.emplace_back(tail_[i].name, *tail_[i].captured);
    }
    calls_.push_back(std::move(call));
    tail_.clear();
    made_at_.clear();
    held_.clear();
    read_.clear();
  }

  /// Receives an output that is certain. From now on, what the operators suggest does not count.
  void add_exact(const at::Tensor& output) { exact_.push_back({{{"", captured(output, options_.copy)}}}); }
  void clear() {
    close({});
    calls_.clear();
    exact_.clear();
  }
  size_t calls() const { return all().size(); }
  const Captured& output(size_t call) const;

 private:
  struct Step {
    std::string name;
    Tensors inputs;
    std::optional<Captured> captured;
  };

  const std::vector<Call>& all() const { return exact_.empty() ? calls_ : exact_; }

  bool is_own(const Names* names) const {
    return names && std::any_of(names->begin(), names->end(), [&](const std::string& name) {
             return path_.empty() ||
                    (name.size() > path_.size() && name.starts_with(path_) && name[path_.size()] == '.');
           });
  }

  void extend_with_parameters(const Op& op, const Reads& reads) {
    const auto was_read = [&](const Names* names) {
      return names && std::find(read_.begin(), read_.end(), names) != read_.end();
    };
    if (open_ && std::any_of(reads.begin(), reads.end(), was_read)) close(op.inputs);
    open_ = true;
    tail_.clear();
    for (auto& [tensor, at] : made_at_) at = -1;
    std::copy_if(reads.begin(), reads.end(), std::back_inserter(read_), [&](auto* names) { return is_own(names); });
    extend(op);
  }

  void extend(const Op& op) {
    Step step{op.name, op.inputs, std::nullopt};
    if (!op.outputs.empty()) step.captured = captured(op.outputs.front(), options_.copy);
    for (const at::Tensor& output : op.outputs) {
      made_at_[output.unsafeGetTensorImpl()] = static_cast<int64_t>(tail_.size());
      held_.push_back(output);
    }
    tail_.push_back(std::move(step));
  }

  /// Returns whether nothing that was computed up to step `at` is read later, except for its output.
  bool carries_all(size_t at, const Tensors& next) const {
    const at::TensorImpl* output = tail_[at].captured->output.unsafeGetTensorImpl();
    const auto escapes = [&](const at::Tensor& tensor) {
      const auto made = made_at_.find(tensor.unsafeGetTensorImpl());
      return made != made_at_.end() && made->second <= static_cast<int64_t>(at) && made->first != output;
    };
    for (size_t i = at + 1; i < tail_.size(); ++i) {
      if (std::any_of(tail_[i].inputs.begin(), tail_[i].inputs.end(), escapes)) return false;
    }
    return std::none_of(next.begin(), next.end(), escapes);
  }

  std::string path_;
  Rule rule_;
  CaptureOptions options_;
  bool open_ = false;       ///< a call is being observed
  Reads read_;              ///< parameters that it has read
  std::vector<Step> tail_;  ///< its last operator that read a parameter, and those that follow
  std::unordered_map<const at::TensorImpl*, int64_t> made_at_;  ///< step of `tail_`, or -1 if earlier
  Tensors held_;                                                ///< keeps the keys of `made_at_` alive
  std::vector<Call> calls_;
  std::vector<Call> exact_;
};

const Captured& Target::output(size_t call) const {
  const auto& choices = all()[call].choices;
  const Captured* found = nullptr;
  std::string names;
  for (const auto& [name, captured] : choices) {
    if (!name.empty() && (name == options_.last_operator || name == options_.last_operator + "_")) found = &captured;
    names += (names.empty() ? "" : ", ") + name;
  }
  if (!found && choices.size() == 1) found = &choices.front().second;
  TORCH_CHECK(found, "capture: the output of module `", path_, "` is ambiguous: it may be the result of any of these ",
              "operators: ", names.empty() ? "(none)" : names, ". State one of them as `last_operator`, or create a ",
              "ModuleScope in the module's forward().");
  TORCH_CHECK(found->copy.defined() || version_of(found->output) == found->version, "capture: the output of module `",
              path_, "` was changed in place after the module had returned it. Set `copy` to keep its value.");
  return *found;
}

/// Finds the outputs of modules among the operators of the forward pass.
class CapturingObserver : public tap::Observer {
 public:
  CapturingObserver(const NamedTensors& tensors, std::vector<Target> targets)
      : memory_(tensors), targets_(std::move(targets)) {}

  tap::ObserverNeeds needs() const override {
    return {.operators = true, .backward_nodes = true, .user_scopes = true, .inputs = true, .outputs = true};
  }

  void before(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    Thread& thread = threads_[event.thread_id];
    if (event.kind == Kind::backward_node) ++thread.backward;
    if (event.kind == Kind::user_scope) thread.scopes.emplace_back(event.name);
    if (event.kind != Kind::op || thread.backward > 0 || thread.depth++ > 0) return;
    thread.op = {std::string(event.name.substr(event.name.rfind(':') + 1)), {}, {}};
    for_each_tensor(event.inputs, [&](const at::Tensor& tensor) { thread.op.inputs.push_back(tensor); });
  }

  void after(const tap::OpEvent& event) override {
    MutexLock lock(mutex_);
    Thread& thread = threads_[event.thread_id];
    if (event.kind == Kind::backward_node) --thread.backward;
    if (event.kind == Kind::user_scope && !thread.scopes.empty()) leave_scope(thread);
    if (event.kind != Kind::op || thread.backward > 0 || thread.depth == 0 || --thread.depth > 0) return;
    for_each_tensor(event.outputs, [&](const at::Tensor& tensor) { thread.op.outputs.push_back(tensor); });
    receive(std::exchange(thread.op, {}), thread);
  }

  /// Calls `use(target)` for the module of this path, after ending the call that is being observed.
  template <class Use>
  auto with(std::string_view path, const Use& use) {
    MutexLock lock(mutex_);
    const auto target =
        std::find_if(targets_.begin(), targets_.end(), [&](const Target& t) { return t.path() == path; });
    TORCH_CHECK(target != targets_.end(), "capture: module `", path, "` is not among the captured modules.");
    target->close({});
    return use(*target);
  }
  void add_exact(size_t target, const Tensors& outputs) {
    MutexLock lock(mutex_);
    if (!outputs.empty()) targets_[target].add_exact(outputs.front());
  }
  void clear() {
    MutexLock lock(mutex_);
    for (Target& target : targets_) target.clear();
  }

 private:
  struct Thread {
    int depth = 0;     ///< of running operators
    int backward = 0;  ///< of running autograd nodes
    Op op;             ///< the outermost one
    at::Tensor last;   ///< result of the last outermost operator
    std::vector<std::string> scopes;
  };

  void leave_scope(Thread& thread) BELLOWS_REQUIRES(mutex_) {
    const std::string scope = std::exchange(thread.scopes.back(), {});
    thread.scopes.pop_back();
    if (!scope.starts_with(module_scope_prefix) || !thread.last.defined()) return;
    for (Target& target : targets_) {
      if (scope.substr(module_scope_prefix.size()) != target.path()) continue;
      target.add_exact(thread.last);
    }
  }

  void receive(const Op& op, Thread& thread) BELLOWS_REQUIRES(mutex_) {
    if (!op.outputs.empty()) thread.last = op.outputs.front();
    Reads reads;
    reads.reserve(op.inputs.size());
    for (const at::Tensor& input : op.inputs) reads.push_back(memory_.names_of(input));
    if (!reads.empty() && std::find(reads.begin(), reads.end(), nullptr) == reads.end())
      return derive_weights(op, *reads.front());
    bool changes_weights = !op.outputs.empty();
    for (const at::Tensor& output : op.outputs) changes_weights = changes_weights && memory_.names_of(output);
    if (changes_weights) return;  // an optimizer
    for (Target& target : targets_) target.receive(op, reads);
  }

  /// A cast, a transpose or a penalty reads nothing but weights, so it is no call. Its results are weights, too, unless
  /// they are sums.
  void derive_weights(const Op& op, const Names& names) BELLOWS_REQUIRES(mutex_) {
    for (const at::Tensor& output : op.outputs) {
      if (memory_.names_of(output) || output.numel() != op.inputs.front().numel() || output.dim() == 0) continue;
      for (const std::string& name : names) memory_.add(name, output);
    }
  }

  Mutex mutex_;
  ModelMemory memory_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<Target> targets_ BELLOWS_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Thread> threads_ BELLOWS_GUARDED_BY(mutex_);
};

std::shared_ptr<torch::nn::Module> submodule(const std::shared_ptr<torch::nn::Module>& root, const std::string& path) {
  if (!root || path.empty()) return root;
  const auto* found = root->named_modules().find(path);
  return found ? *found : nullptr;
}

std::string parent_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// The Sequential that calls the module, and the index of the child whose result is the module's; null if none.
std::pair<std::shared_ptr<torch::nn::Module>, size_t> sequential_of(const std::shared_ptr<torch::nn::Module>& root,
                                                                    const std::string& path) {
  const auto module = submodule(root, path);
  if (!module) return {};
  if (const int64_t children = tap::children_of_sequential(*module); children > 0) return {module, children - 1};
  const auto parent = path.empty() ? nullptr : submodule(root, parent_of(path));
  if (!parent || tap::children_of_sequential(*parent) < 0) return {};
  const auto children = parent->children();
  const auto at = std::find(children.begin(), children.end(), module);
  return at == children.end() ? decltype(sequential_of(root, path)){}
                              : std::pair(parent, static_cast<size_t>(at - children.begin()));
}

/// Layers whose last operator that reads a parameter computes the output.
bool is_layer(const torch::nn::Module& module) {
  const std::string& name = module.name();
  const bool known = name.starts_with("torch::nn::") || name == "bellows::models::layers::LinearImpl";
  return known && module.children().empty() && name.find("Multihead") == std::string::npos;
}

std::vector<std::string> module_paths(const Model& model) {
  std::vector<std::string> paths;
  for (const auto& [path, type] : model.module_types()) paths.push_back(path);
  for (const auto& [name, tensor] : model.state_dict()) {
    for (std::string path = parent_of(name); !path.empty(); path = parent_of(path)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

void check_paths(const std::vector<std::string>& modules, const std::vector<std::string>& known) {
  TORCH_CHECK_VALUE(!modules.empty(), "capture: expected at least one module.");
  for (const std::string& path : modules) {
    if (std::binary_search(known.begin(), known.end(), path)) continue;
    const std::string nearest = nearest_match(path, known);
    TORCH_CHECK_VALUE(false, "capture: the model has no module `", path, "`",
                      nearest.empty() ? std::string(".") : "; did you mean `" + nearest + "`?");
  }
}

}  // namespace

struct Capture::State {
  std::shared_ptr<CapturingObserver> observer;
  std::optional<tap::ObserverGuard> guard;
  std::vector<std::unique_ptr<tap::SequentialTap>> taps;
};

Capture::Capture(const Model& model, const std::vector<std::string>& modules, const CaptureOptions& options)
    : state_(std::make_unique<State>()) {
  check_paths(modules, module_paths(model));
  const auto root = model.module_or_null();
  std::vector<Target> targets;
  targets.reserve(modules.size());
  for (const std::string& path : modules) {
    const auto module = submodule(root, path);
    targets.emplace_back(path, module && is_layer(*module) ? Rule::layer : Rule::between, options);
  }
  state_->observer = std::make_shared<CapturingObserver>(model.state_dict(), std::move(targets));
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto [sequential, child] = sequential_of(root, modules[i]);
    if (!sequential) continue;
    state_->taps.push_back(std::make_unique<tap::SequentialTap>(
        sequential, child,
        [observer = state_->observer, i](const Tensors& outputs) { observer->add_exact(i, outputs); }));
  }
  state_->guard.emplace(state_->observer);
}

Capture::~Capture() = default;
Capture::Capture(Capture&&) noexcept = default;

std::vector<at::Tensor> Capture::outputs(std::string_view module) const {
  state_->guard->check();
  return state_->observer->with(module, [](const Target& target) {
    Tensors outputs;
    outputs.reserve(target.calls());
    for (size_t i = 0; i < target.calls(); ++i) {
      const Captured& captured = target.output(i);
      outputs.push_back(captured.copy.defined() ? captured.copy : captured.output);
    }
    return outputs;
  });
}

at::Tensor Capture::output(std::string_view module) const {
  const Tensors all = outputs(module);
  TORCH_CHECK(
      !all.empty(), "capture: module `", module, "` was not called: no operator read one of its parameters, and no ",
      "Sequential called it. Modules without parameters need a ModuleScope in forward(). Compiled functions run ",
      "no operators.");
  TORCH_CHECK(all.size() == 1, "capture: module `", module, "` was called ", all.size(),
              " times. Use outputs(), or call clear() before each forward pass.");
  return all.front();
}

at::Tensor Capture::gradient(std::string_view module) const {
  output(module);
  const at::Tensor gradient =
      state_->observer->with(module, [](const Target& target) { return *target.output(0).gradient; });
  TORCH_CHECK(gradient.defined(), "capture: no backward pass has reached the output of module `", module, "`.");
  return gradient;
}

void Capture::clear() {
  state_->observer->clear();
}

Capture capture(const Model& model, const std::vector<std::string>& modules, const CaptureOptions& options) {
  return Capture(model, modules, options);
}

}  // namespace bellows::inspect
