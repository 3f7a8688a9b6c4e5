#include "bellows/optim/state/python_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/torch.h>

#include <map>
#include <set>

#include "bellows/core/error.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/fields_impl.h"
#include "bellows/optim/state/state.h"

namespace bellows::optim {

namespace {

using io::PickleValue;

/// Options of Python that have no counterpart in a group here.
const std::set<std::string>& python_only() {
  static const std::set<std::string> names = {
      "foreach", "fused",       "capturable",   "differentiable",         "initial_lr",           "maximize",
      "params",  "param_names", "max_momentum", "decoupled_weight_decay", "momentum_buffer_dtype"};
  return names;
}

bool is_decoupled(const to::Optimizer& optimizer) {
  return dynamic_cast<const to::AdamWOptions*>(&optimizer.defaults()) != nullptr;
}

bool is_adam(const to::Optimizer& optimizer) {
  return is_decoupled(optimizer) || dynamic_cast<const to::AdamOptions*>(&optimizer.defaults());
}

bool climbs(const to::Optimizer& optimizer) {
  const auto* own = dynamic_cast<const LibtorchOptimizer*>(&optimizer);
  return own && own->maximize();
}

/// The three parts of a name such as "state.3.exp_avg".
struct StateName {
  std::string kind, field;
  int64_t index = 0;
  explicit StateName(const std::string& name) {
    const size_t first = name.find('.'), second = name.find('.', first + 1);
    kind = name.substr(0, first);
    index = std::stoll(name.substr(first + 1, second - first - 1));
    field = name.substr(second + 1);
  }
};

/// Python stores step counts as float32 tensors and options as numbers.
PickleValue to_python(const StateName& name, const at::Tensor& value) {
  if (name.kind == "state") return name.field == "step" ? value.to(at::kFloat) : value;
  if (value.numel() == 2) return PickleValue::tuple({value[0].item<double>(), value[1].item<double>()});
  if (value.scalar_type() == at::kBool) return value.item<bool>();
  if (name.field == "beta1" && value.item<double>() == 0) return PickleValue();  // Adafactor without a first moment
  return value.item<double>();
}

// --- from Python

at::Tensor number_tensor(const PickleValue& value, const std::string& name) {
  switch (value.kind()) {
    case PickleValue::Kind::tensor:
      return value.as_tensor();
    case PickleValue::Kind::boolean:
      return at::scalar_tensor(value.as_bool(), at::kBool);
    case PickleValue::Kind::integer:
    case PickleValue::Kind::real:
      return at::scalar_tensor(value.as_double(), at::kDouble);
    default:
      break;
  }
  if (value.is_sequence() && value.size() == 2) {
    return at::tensor({value.at_index(0).as_double(), value.at_index(1).as_double()}, at::kDouble);
  }
  TORCH_CHECK_VALUE(false, "optim::load_python_state_dict: \"", name, "\" should be a number, a pair of numbers or a ",
                    "tensor, got ", value.describe(), ".");
}

/// None in Adafactor's options: as lr, it means relative_step with a factor of 1; as beta1, no first moment.
at::Tensor none_or_number(const std::string& option, const PickleValue& value, const std::string& name) {
  if (!value.is_none()) return number_tensor(value, name);
  return at::scalar_tensor(option == "lr" ? 1.0 : 0.0, at::kDouble);
}

void read_state(const PickleValue& state, NamedTensors& result) {
  for (const auto& [index, fields] : state.items()) {
    for (const auto& [key, value] : fields.items()) {
      if (value.is_none() || key.as_string() == "RMS")
        continue;  // SGD without momentum; a log value in transformers' Adafactor
      const std::string name = c10::str("state.", index.as_int(), ".", key.as_string());
      result.emplace_back(name, number_tensor(value, name));
    }
  }
}

void check_group(const to::Optimizer& optimizer, const PickleValue& group, size_t g) {
  const auto flag = [&](const char* name) {
    const PickleValue* value = group.find(name);
    return value && value->kind() == PickleValue::Kind::boolean && value->as_bool();
  };
  TORCH_CHECK_VALUE(!is_adam(optimizer) || !group.contains("decoupled_weight_decay") ||
                        flag("decoupled_weight_decay") == is_decoupled(optimizer),
                    "optim::load_python_state_dict: the state belongs to ", is_decoupled(optimizer) ? "Adam" : "AdamW",
                    ", but the optimizer is ", is_decoupled(optimizer) ? "AdamW" : "Adam", ".");
  TORCH_CHECK_VALUE(flag("maximize") == climbs(optimizer), "optim::load_python_state_dict: group ", g,
                    " has maximize = ", flag("maximize"),
                    ", but the optimizer was constructed with the opposite value.");
  const size_t expected = optimizer.param_groups()[g].params().size();
  TORCH_CHECK_VALUE(group.at("params").size() == expected, "optim::load_python_state_dict: group ", g, " has ",
                    group.at("params").size(), " parameters, but the group of the optimizer has ", expected,
                    ". The state belongs to another model.");
}

}  // namespace

io::PickleValue python_state_dict(const to::Optimizer& optimizer) {
  std::map<int64_t, PickleValue> states;
  std::vector<PickleValue> groups(optimizer.param_groups().size(), PickleValue());
  for (PickleValue& group : groups) group = PickleValue::dict();
  for (const auto& [name, tensor] : state_dict(optimizer)) {
    TORCH_CHECK_VALUE(name != "archive", "optim::python_state_dict: Python has no optimizer of this class.");
    const StateName parts(name);
    if (parts.kind == "state") {
      PickleValue& state = states.try_emplace(parts.index, PickleValue::dict()).first->second;
      state.set(parts.field, to_python(parts, tensor));
    } else {
      groups[static_cast<size_t>(parts.index)].set(parts.field, to_python(parts, tensor));
    }
  }
  int64_t next = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].set("maximize", climbs(optimizer));
    for (const char* name : {"foreach", "fused"}) groups[g].set(name, PickleValue());
    for (const char* name : {"capturable", "differentiable"}) groups[g].set(name, false);
    if (is_adam(optimizer)) groups[g].set("decoupled_weight_decay", is_decoupled(optimizer));
    PickleValue params = PickleValue::list();
    for (size_t i = 0; i < optimizer.param_groups()[g].params().size(); ++i) params.push_back(next++);
    groups[g].set("params", params);
  }
  PickleValue all_states = PickleValue::dict();
  for (auto& [index, state] : states) all_states.set(index, state);
  return PickleValue::dict({{"state", all_states}, {"param_groups", PickleValue::list(std::move(groups))}});
}

void load_python_state_dict(to::Optimizer& optimizer, const io::PickleValue& state) {
  TORCH_CHECK_VALUE(state.is_dict() && state.contains("state") && state.contains("param_groups"),
                    "optim::load_python_state_dict: expected a dict with \"state\" and \"param_groups\", got ",
                    state.describe(), ".");
  const auto& groups = state.at("param_groups").elements();
  TORCH_CHECK_VALUE(groups.size() == optimizer.param_groups().size(), "optim::load_python_state_dict: the state has ",
                    groups.size(), " parameter groups, but the optimizer has ", optimizer.param_groups().size(), ".");
  NamedTensors result;
  read_state(state.at("state"), result);
  for (size_t g = 0; g < groups.size(); ++g) {
    check_group(optimizer, groups[g], g);
    for (const auto& [key, value] : groups[g].items()) {
      if (python_only().contains(key.as_string())) continue;
      const std::string name = c10::str("param_groups.", g, ".", key.as_string());
      result.emplace_back(name, none_or_number(key.as_string(), value, name));
    }
  }
  load_state_dict(optimizer, result);
}

}  // namespace bellows::optim
