#include "bellows/optim/state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <map>
#include <sstream>

#include "bellows/core/error.h"

namespace bellows::optim {

namespace {

namespace to = torch::optim;

// What each class holds, once: these lists write, read and check.

template <class F>
void fields(to::SGDOptions& o, F f) {
  f("lr", o.lr()), f("momentum", o.momentum()), f("dampening", o.dampening()), f("weight_decay", o.weight_decay());
  f("nesterov", o.nesterov());
}
template <class F>
void fields(to::SGDParamState& s, F f) {
  f("momentum_buffer", s.momentum_buffer());
}
template <class Options, class F>
void adam_options(Options& o, F f) {
  f("lr", o.lr()), f("betas", o.betas()), f("eps", o.eps()), f("weight_decay", o.weight_decay()),
      f("amsgrad", o.amsgrad());
}
template <class State, class F>
void adam_state(State& s, F f) {
  f("step", s.step()), f("exp_avg", s.exp_avg()), f("exp_avg_sq", s.exp_avg_sq()),
      f("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class F>
void fields(to::AdamOptions& o, F f) {
  adam_options(o, f);
}
template <class F>
void fields(to::AdamParamState& s, F f) {
  adam_state(s, f);
}
template <class F>
void fields(to::AdamWOptions& o, F f) {
  adam_options(o, f);
}
template <class F>
void fields(to::AdamWParamState& s, F f) {
  adam_state(s, f);
}
template <class F>
void fields(to::RMSpropOptions& o, F f) {
  f("lr", o.lr()), f("alpha", o.alpha()), f("eps", o.eps()), f("weight_decay", o.weight_decay()),
      f("momentum", o.momentum());
  f("centered", o.centered());
}
template <class F>
void fields(to::RMSpropParamState& s, F f) {
  f("step", s.step()), f("square_avg", s.square_avg()), f("momentum_buffer", s.momentum_buffer()),
      f("grad_avg", s.grad_avg());
}
template <class F>
void fields(to::AdagradOptions& o, F f) {
  f("lr", o.lr()), f("lr_decay", o.lr_decay()), f("weight_decay", o.weight_decay()), f("eps", o.eps());
  f("initial_accumulator_value", o.initial_accumulator_value());
}
template <class F>
void fields(to::AdagradParamState& s, F f) {
  f("step", s.step()), f("sum", s.sum());
}

template <class O, class S>
struct Kind {
  using Options = O;
  using State = S;
};

/// Calls `f` with the classes that `optimizer` uses. False when they are not among those above.
template <class F>
bool with_kind(const to::Optimizer& optimizer, F f) {
  const auto& defaults = optimizer.defaults();
  if (dynamic_cast<const to::SGDOptions*>(&defaults)) return f(Kind<to::SGDOptions, to::SGDParamState>());
  if (dynamic_cast<const to::AdamWOptions*>(&defaults)) return f(Kind<to::AdamWOptions, to::AdamWParamState>());
  if (dynamic_cast<const to::AdamOptions*>(&defaults)) return f(Kind<to::AdamOptions, to::AdamParamState>());
  if (dynamic_cast<const to::RMSpropOptions*>(&defaults)) return f(Kind<to::RMSpropOptions, to::RMSpropParamState>());
  if (dynamic_cast<const to::AdagradOptions*>(&defaults)) return f(Kind<to::AdagradOptions, to::AdagradParamState>());
  return false;
}

using Betas = std::tuple<double, double>;

at::Tensor to_tensor(const at::Tensor& value) {
  return value;
}
at::Tensor to_tensor(double value) {
  return at::scalar_tensor(value, at::kDouble);
}
at::Tensor to_tensor(int64_t value) {
  return at::scalar_tensor(value, at::kLong);
}
at::Tensor to_tensor(bool value) {
  return at::scalar_tensor(value, at::kBool);
}
at::Tensor to_tensor(const Betas& value) {
  return at::tensor({std::get<0>(value), std::get<1>(value)}, at::kDouble);
}

/// A state dict under examination: every entry has to be asked for.
class Reader {
 public:
  explicit Reader(const NamedTensors& state) {
    for (const auto& [name, tensor] : state) left_[name] = tensor;
  }

  /// The entry, or an undefined tensor.
  at::Tensor take(const std::string& name) {
    const auto found = left_.find(name);
    if (found == left_.end()) return {};
    at::Tensor tensor = found->second;
    left_.erase(found);
    return tensor;
  }
  bool has_prefix(const std::string& prefix) const {
    const auto next = left_.lower_bound(prefix);
    return next != left_.end() && next->first.starts_with(prefix);
  }
  void check_empty() const {
    TORCH_CHECK_VALUE(left_.empty(), "optim::load_state_dict: the state holds \"", left_.begin()->first,
                      "\", for which this optimizer has no place. It belongs to another optimizer or model.");
  }

 private:
  std::map<std::string, at::Tensor> left_;
};

template <class T>
T number(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), "optim::load_state_dict: \"", name,
                    "\" is missing. The state belongs to another optimizer or model.");
  TORCH_CHECK_VALUE(tensor.numel() == 1, "optim::load_state_dict: \"", name, "\" should be one number, it has shape ",
                    tensor.sizes(), ".");
  return tensor.item<T>();
}

void read(double& value, const at::Tensor& tensor, const std::string& name, const at::Tensor&) {
  value = number<double>(tensor, name);
}
void read(int64_t& value, const at::Tensor& tensor, const std::string& name, const at::Tensor&) {
  value = number<int64_t>(tensor, name);
}
void read(bool& value, const at::Tensor& tensor, const std::string& name, const at::Tensor&) {
  value = number<bool>(tensor, name);
}
void read(Betas& value, const at::Tensor& tensor, const std::string& name, const at::Tensor&) {
  TORCH_CHECK_VALUE(tensor.defined() && tensor.numel() == 2, "optim::load_state_dict: \"", name,
                    "\" should be two numbers. The state belongs to another optimizer.");
  value = {tensor.flatten()[0].item<double>(), tensor.flatten()[1].item<double>()};
}
/// A tensor may be missing: not every option of an optimizer makes it.
void read(at::Tensor& value, const at::Tensor& tensor, const std::string& name, const at::Tensor& parameter) {
  if (!tensor.defined()) return;
  TORCH_CHECK_VALUE(tensor.sizes() == parameter.sizes(), "optim::load_state_dict: \"", name, "\" has shape ",
                    tensor.sizes(), ", its parameter has ", parameter.sizes(), ". The state belongs to another model.");
  value = tensor.detach().to(parameter.device()).clone();
}

std::string at_index(const char* what, size_t i) {
  return c10::str(what, ".", i, ".");
}

template <class K>
bool write_known(const to::Optimizer& optimizer, NamedTensors& result) {
  size_t index = 0;
  for (const to::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      const std::string prefix = at_index("state", index++);
      const auto found = optimizer.state().find(p.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto* state = dynamic_cast<typename K::State*>(found->second.get());
      if (!state) return false;  // a class of the user's that only shares the options
      fields(*state, [&](const char* name, auto& value) {
        at::Tensor tensor = to_tensor(value);
        if (tensor.defined()) result.emplace_back(prefix + name, std::move(tensor));
      });
    }
  }
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto options = optimizer.param_groups()[g].options().clone();
    fields(static_cast<typename K::Options&>(*options), [&](const char* name, auto& value) {
      result.emplace_back(at_index("param_groups", g) + name, to_tensor(value));
    });
  }
  return true;
}

template <class K>
bool read_known(to::Optimizer& optimizer, Reader& reader) {
  std::vector<std::unique_ptr<to::OptimizerOptions>> options;
  std::map<void*, std::unique_ptr<to::OptimizerParamState>> states;
  size_t index = 0;
  for (to::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      const std::string prefix = at_index("state", index++);
      if (!reader.has_prefix(prefix)) continue;
      auto state = std::make_unique<typename K::State>();
      fields(*state, [&](const char* name, auto& value) { read(value, reader.take(prefix + name), prefix + name, p); });
      states[p.unsafeGetTensorImpl()] = std::move(state);
    }
    const std::string prefix = at_index("param_groups", options.size());
    options.push_back(group.options().clone());
    fields(static_cast<typename K::Options&>(*options.back()),
           [&](const char* name, auto& value) { read(value, reader.take(prefix + name), prefix + name, {}); });
  }
  reader.check_empty();
  optimizer.state().clear();
  for (auto& [key, state] : states) optimizer.state()[key] = std::move(state);
  for (size_t g = 0; g < options.size(); ++g) optimizer.param_groups()[g].set_options(std::move(options[g]));
  return true;
}

at::Tensor archive_of(const to::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  const std::string bytes = out.str();
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte).clone();
}

void load_archive(to::Optimizer& optimizer, const at::Tensor& bytes) {
  const at::Tensor data = bytes.contiguous();
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
  optimizer.load(archive);
}

}  // namespace

NamedTensors state_dict(const to::Optimizer& optimizer) {
  NamedTensors result;
  const bool known = with_kind(optimizer, [&](auto kind) { return write_known<decltype(kind)>(optimizer, result); });
  return known ? result : NamedTensors{{"archive", archive_of(optimizer)}};
}

void load_state_dict(to::Optimizer& optimizer, const NamedTensors& state) {
  const c10::NoGradGuard no_grad;
  Reader reader(state);
  const at::Tensor archive = reader.take("archive");
  if (archive.defined()) {
    reader.check_empty();
    return load_archive(optimizer, archive);
  }
  const bool known = with_kind(optimizer, [&](auto kind) { return read_known<decltype(kind)>(optimizer, reader); });
  TORCH_CHECK_VALUE(known,
                    "optim::load_state_dict: expected \"archive\", for an optimizer of a class of your own. "
                    "The state belongs to another optimizer.");
}

double get_lr(const to::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).options().get_lr();
}

void set_lr(to::Optimizer& optimizer, double lr) {
  for (to::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(lr);
}

}  // namespace bellows::optim
