#include "bellows/optim/state/state.h"

#include <torch/serialize.h>

#include <charconv>
#include <map>
#include <sstream>
#include <string_view>

#include "bellows/core/error.h"
#include "bellows/core/named_state.h"
#include "bellows/optim/optimizer_internals.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/fields_impl.h"

namespace bellows::optim {

namespace {

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

/// Reads a state dict and detects entries that were not read.
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
    TORCH_CHECK_VALUE(left_.empty(), "optim::load_state_dict: the state contains \"", left_.begin()->first,
                      "\", which this optimizer does not have. It belongs to another optimizer or model.");
  }

 private:
  std::map<std::string, at::Tensor> left_;
};

template <class T>
T number(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), "optim::load_state_dict: \"", name,
                    "\" is missing. The state belongs to another optimizer or model.");
  TORCH_CHECK_VALUE(tensor.numel() == 1, "optim::load_state_dict: \"", name,
                    "\" should be one number, but it has shape ", tensor.sizes(), ".");
  return tensor.item<T>();
}

/// Shape and options that a state tensor must have.
struct Owner {
  std::vector<int64_t> sizes = {};
  at::TensorOptions options = {};
};

void read(double& value, const at::Tensor& tensor, const std::string& name, const Owner&) {
  value = number<double>(tensor, name);
}
void read(int64_t& value, const at::Tensor& tensor, const std::string& name, const Owner&) {
  value = number<int64_t>(tensor, name);
}
void read(bool& value, const at::Tensor& tensor, const std::string& name, const Owner&) {
  value = number<bool>(tensor, name);
}
void read(Betas& value, const at::Tensor& tensor, const std::string& name, const Owner&) {
  TORCH_CHECK_VALUE(tensor.defined() && tensor.numel() == 2, "optim::load_state_dict: \"", name,
                    "\" should be two numbers. The state belongs to another optimizer.");
  value = {tensor.flatten()[0].item<double>(), tensor.flatten()[1].item<double>()};
}
/// The tensor may be missing, because some options do not create it.
void read(at::Tensor& value, const at::Tensor& tensor, const std::string& name, const Owner& owner) {
  if (!tensor.defined()) return;
  const at::IntArrayRef sizes = owner.sizes;
  TORCH_CHECK_VALUE(tensor.sizes() == sizes, "optim::load_state_dict: \"", name, "\" has shape ", tensor.sizes(),
                    ", expected ", sizes, ". The state belongs to another model.");
  value = tensor.detach().to(owner.options, /*non_blocking=*/false, /*copy=*/true);
}

std::string at_index(const char* what, size_t i) {
  return c10::str(what, ".", i, ".");
}

/// Suffix of the scales of a moment in low-bit state.
constexpr const char* scale_suffix = ".absmax";
constexpr const char* rounding_count_name = "param_groups.0.rounding_count";

template <class T>
constexpr bool is_tensor(const T&) {
  return std::is_same_v<T, at::Tensor>;
}

const LibtorchOptimizer* ours(const to::Optimizer& optimizer) {
  return dynamic_cast<const LibtorchOptimizer*>(&optimizer);
}
LibtorchOptimizer* ours(to::Optimizer& optimizer) {
  return dynamic_cast<LibtorchOptimizer*>(&optimizer);
}

template <class K>
bool write_known(const to::Optimizer& optimizer, NamedTensors& result) {
  size_t index = 0;
  for (const to::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      const std::string prefix = at_index("state", index++);
      if (const at::Tensor master = ours(optimizer) ? ours(optimizer)->master_weight(p) : at::Tensor();
          master.defined())
        result.emplace_back(prefix + "master", master);
      const auto found = optimizer.state().find(p.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto* state = dynamic_cast<typename K::State*>(found->second.get());
      if (!state) return false;  // the user's own class, which only shares the options
      const auto scales = ours(optimizer) ? ours(optimizer)->state_scales(p) : LibtorchOptimizer::Scales();
      size_t moment = 0;
      fields(*state, [&](const char* name, auto& value) {
        at::Tensor tensor = to_tensor(value);
        if (!tensor.defined()) return;
        result.emplace_back(prefix + name, std::move(tensor));
        if (!is_tensor(value)) return;
        if (moment < 2 && scales[moment].defined()) result.emplace_back(prefix + name + scale_suffix, scales[moment]);
        ++moment;
      });
    }
  }
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto options = optimizer.param_groups()[g].options().clone();
    fields(static_cast<typename K::Options&>(*options), [&](const char* name, auto& value) {
      result.emplace_back(at_index("param_groups", g) + name, to_tensor(value));
    });
  }
  if (ours(optimizer) && ours(optimizer)->rounds_at_random())
    result.emplace_back(rounding_count_name, to_tensor(ours(optimizer)->rounding_count()));
  return true;
}

/// A state dict of an optimizer of kind K. It is read completely before anything is changed.
template <class K>
struct Loaded {
  std::vector<std::unique_ptr<to::OptimizerOptions>> options;
  std::map<void*, std::unique_ptr<to::OptimizerParamState>> states;
  std::vector<std::pair<at::Tensor, at::Tensor>> masters;
  std::vector<std::pair<at::Tensor, LibtorchOptimizer::Scales>> scales;
  int64_t rounding_count = 0;

  void read_state(const LibtorchOptimizer* optimizer, const at::Tensor& p, const std::string& prefix, Reader& reader) {
    const at::TensorOptions type =
        p.options().dtype(optimizer ? optimizer->state_dtype(p) : p.scalar_type()).requires_grad(false);
    at::Tensor master;
    read(master, reader.take(prefix + "master"), prefix + "master", {p.sizes().vec(), type.dtype(at::kFloat)});
    if (master.defined()) {
      TORCH_CHECK_VALUE(optimizer && optimizer->keeps_master(p), "optim::load_state_dict: \"", prefix,
                        "master\" is a master weight, but this optimizer has no master weight for a ", p.scalar_type(),
                        " parameter. Construct it with .master_weights = true.");
      masters.emplace_back(p, master);
    }
    if (!reader.has_prefix(prefix)) return;
    auto state = std::make_unique<typename K::State>();
    const Owner owner{optimizer ? optimizer->state_sizes(p) : p.sizes().vec(), type};
    LibtorchOptimizer::Scales found;
    size_t moment = 0;
    fields(*state, [&](const char* name, auto& value) {
      const at::Tensor tensor = reader.take(prefix + name);
      if (optimizer && is_tensor(value) && tensor.defined()) {
        const at::Tensor scale = reader.take(prefix + name + scale_suffix);
        check_low_bit_state(*optimizer, p, tensor, scale, prefix + name);
        if (scale.defined()) found[moment] = scale;
        ++moment;
      }
      if constexpr (requires { K::State::sizes_of(name, p); }) {
        const at::TensorOptions own = p.options().dtype(K::State::dtype_of(p)).requires_grad(false);
        read(value, tensor, prefix + name, {K::State::sizes_of(name, p), own});
      } else {
        read(value, tensor, prefix + name, owner);
      }
    });
    if (found[0].defined()) scales.emplace_back(p, std::move(found));
    states[p.unsafeGetTensorImpl()] = std::move(state);
  }
  void give_to(LibtorchOptimizer& optimizer) const {
    optimizer.settle_steps();
    optimizer.refresh_master_weights();
    for (const to::OptimizerParamGroup& group : optimizer.param_groups()) {
      for (const at::Tensor& p : group.params()) {
        if (optimizer.state_block(p) > 0) optimizer.set_state_scales(p, {});  // new state gets new scales
      }
    }
    for (const auto& [p, master] : masters) optimizer.set_master_weight(p, master);
    for (const auto& [p, found] : scales) optimizer.set_state_scales(p, found);
    optimizer.set_rounding_count(rounding_count);
  }
};

template <class K>
bool read_known(to::Optimizer& optimizer, Reader& reader) {
  Loaded<K> loaded;
  size_t index = 0;
  for (to::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      loaded.read_state(ours(optimizer), p, at_index("state", index++), reader);
    }
    const std::string prefix = at_index("param_groups", loaded.options.size());
    loaded.options.push_back(group.options().clone());
    fields(static_cast<typename K::Options&>(*loaded.options.back()),
           [&](const char* name, auto& value) { read(value, reader.take(prefix + name), prefix + name, {}); });
  }
  LibtorchOptimizer* const own = ours(optimizer);
  if (const at::Tensor count = own && own->rounds_at_random() ? reader.take(rounding_count_name) : at::Tensor();
      count.defined())
    read(loaded.rounding_count, count, rounding_count_name, {});
  reader.check_empty();
  std::decay_t<decltype(optimizer.state())> states;
  for (auto& [key, state] : loaded.states) states[key] = std::move(state);
  if (own) {
    OptimizerInternals{*own}.begin_change();
    loaded.give_to(*own);
  }
  optimizer.state().swap(states);
  for (size_t g = 0; g < loaded.options.size(); ++g)
    optimizer.param_groups()[g].set_options(std::move(loaded.options[g]));
  if (own) own->forget_incomplete_step();
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
  if (const auto* own = dynamic_cast<const NamedState*>(&optimizer)) return own->state_dict();
  NamedTensors result;
  // Settling does not change the observable state of the optimizer.
  if (auto* own = const_cast<LibtorchOptimizer*>(ours(optimizer))) own->settle_steps();
  const bool known =
      with_kind(optimizer.defaults(), [&](auto kind) { return write_known<decltype(kind)>(optimizer, result); });
  return known ? result : NamedTensors{{"archive", archive_of(optimizer)}};
}

bool has_named_state(const to::Optimizer& optimizer) {
  const NamedTensors state = state_dict(optimizer);
  return state.empty() || state.front().first != "archive";
}

void load_state_dict(to::Optimizer& optimizer, const NamedTensors& state) {
  const c10::NoGradGuard no_grad;
  if (auto* own = dynamic_cast<NamedState*>(&optimizer)) return own->load_state_dict(state);
  Reader reader(state);
  const at::Tensor archive = reader.take("archive");
  if (archive.defined()) {
    reader.check_empty();
    return load_archive(optimizer, archive);
  }
  const bool known =
      with_kind(optimizer.defaults(), [&](auto kind) { return read_known<decltype(kind)>(optimizer, reader); });
  TORCH_CHECK_VALUE(known,
                    "optim::load_state_dict: expected \"archive\" for an optimizer class of your own. "
                    "The state belongs to another optimizer.");
}

std::optional<std::pair<size_t, std::string>> split_state_name(const std::string& name) {
  constexpr std::string_view prefix = "state.";
  if (!name.starts_with(prefix)) return std::nullopt;
  size_t index = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), last, index);
  if (error != std::errc() || end == last || *end != '.') return std::nullopt;
  return std::pair(index, std::string(end + 1, last));
}

std::string state_name(size_t index, const std::string& field) {
  return at_index("state", index) + field;
}

double get_lr(const to::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).options().get_lr();
}

void set_lr(to::Optimizer& optimizer, double lr) {
  for (to::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(lr);
  if (LibtorchOptimizer* own = ours(optimizer); own && own->lr_tensor().defined()) own->lr_tensor().fill_(lr);
}

}  // namespace bellows::optim
