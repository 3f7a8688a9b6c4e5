#include "bellows/export/program_session.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "bellows/core/error.h"

namespace bellows::export_detail {

namespace {

constexpr size_t most_instances = 64;

/// The dispatch keys of tensors that are created outside of inference mode.
c10::DispatchKeySet ordinary_keys() {
  static const c10::DispatchKeySet keys = [] {
    const c10::InferenceMode off(false);
    return at::empty({0}).key_set();
  }();
  return keys;
}

std::vector<at::Tensor> frozen_tensors(const ProgramContent& content) {
  std::vector<at::Tensor> tensors;
  for (const ProgramContent::Source& source : content.sources) {
    if (source.argument >= 0) continue;
    tensors.push_back(at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(source.storage), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>()));
  }
  return tensors;
}

}  // namespace

/// A program for certain sizes.
struct ProgramSession::Instance {
  /// Where a result comes from.
  struct Result {
    graph::Geometry geometry{};
    int output = -1, input = -1;
  };

  Sizes sizes{};
  std::shared_ptr<graph::Executable> executable{};
  std::vector<graph::Geometry> arguments{};       ///< for each input of the program; only those of arguments are used
  std::vector<c10::Storage> inputs{}, outputs{};  ///< of a call; the weights stay
  std::vector<Result> results{};
};

ProgramSession::ProgramSession(ProgramContent content, std::shared_ptr<compile_detail::KernelProvider> kernels,
                               const std::shared_ptr<graph::ConstantStore>& constants,
                               const LoadProgramOptions& options,
                               std::function<void(const std::string& weight)> check_weight)
    : content_(std::move(content)),
      backend_({.frozen = frozen_tensors(content_),
                .autocast = content_.autocast,
                .batch_invariant = options.batch_invariant,
                .kernels = std::move(kernels),
                .constants = constants}),
      check_weight_(std::move(check_weight)) {
  if (!constants) return;
  for (const ProgramContent::Source& source : content_.sources) {
    if (source.argument < 0) constants->name(source.storage, source.weight);
  }
}

ProgramSession::~ProgramSession() = default;

void ProgramSession::find_sizes(std::span<const at::Tensor> inputs, Sizes& sizes) const {
  TORCH_CHECK_VALUE(inputs.size() == content_.inputs.size(), "this program has ", content_.inputs.size(),
                    " inputs, got ", inputs.size(), ".");
  sizes.clear();
  for (const auto& [input, axis] : content_.places) {
    const at::Tensor& given = inputs[input];
    TORCH_CHECK_VALUE(given.defined() && static_cast<size_t>(given.dim()) > axis, "input \"",
                      content_.inputs[input].name, "\": expected a tensor with ", content_.inputs[input].sizes.size(),
                      " axes, got ", given.defined() ? c10::str(given.dim(), " axes") : "an undefined tensor", ".");
    sizes.push_back(given.sizes()[axis]);
  }
}

void ProgramSession::check_input(size_t index, const at::Tensor& input, const Sizes& sizes) const {
  const ProgramTensor& expected = content_.inputs[index];
  const auto shape = [&] {
    std::string text = "[";
    for (const std::string& size : expected.sizes) text += (text.size() > 1 ? ", " : "") + size;
    return text + "]";
  };
  TORCH_CHECK_VALUE(input.defined(), "input \"", expected.name, "\" is undefined; expected a tensor ", expected.dtype,
                    " ", shape(), ".");
  TORCH_CHECK_VALUE(input.scalar_type() == expected.dtype && input.device().is_cpu() && graph::is_plain(input),
                    "input \"", expected.name, "\": expected a dense CPU tensor of type ", expected.dtype, ", got ",
                    input.scalar_type(), " on ", input.device(), ".");
  std::string wrong;
  const bool same_rank = static_cast<size_t>(input.dim()) == expected.sizes.size();
  for (size_t axis = 0; same_rank && axis < expected.sizes.size(); ++axis) {
    const std::string& size = expected.sizes[axis];
    const auto& symbols = content_.program.symbols();
    const auto symbol = std::find(symbols.begin(), symbols.end(), size);
    const int64_t wanted = symbol == symbols.end() ? std::stoll(size) : sizes[symbol - symbols.begin()];
    if (input.sizes()[axis] == wanted) continue;
    wrong = c10::str(" Axis ", axis, " must be ", wanted, symbol == symbols.end() ? "" : " (\"" + size + "\")", ".");
    break;
  }
  TORCH_CHECK_VALUE(same_rank && wrong.empty(), "input \"", expected.name, "\": expected sizes ", shape(), ", got ",
                    input.sizes(), ".", wrong);
}

std::unique_ptr<ProgramSession::Instance> ProgramSession::prepared(const Sizes& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i)
    TORCH_CHECK_VALUE(sizes[i] > 0, "the axis \"", content_.program.symbols()[i], "\" is empty.");
  ProgramTemplate::Instance made = content_.program.instantiate(sizes);
  auto instance = std::make_unique<Instance>();
  instance->sizes = sizes;
  for (size_t i = 0; i < content_.sources.size(); ++i) {
    instance->inputs.push_back(content_.sources[i].storage);
    instance->arguments.push_back(made.program.values[made.program.inputs[i]].geometry);
  }
  instance->outputs.resize(made.program.outputs.size());
  for (const graph::Operand& result : made.results) {
    const auto& outputs = made.program.outputs;
    const auto& inputs = made.program.inputs;
    const auto output =
        std::find_if(outputs.begin(), outputs.end(), [&](const auto& one) { return one.value == result.value; });
    Instance::Result from{.geometry = result.geometry};
    from.geometry.keys = ordinary_keys();
    if (output != outputs.end())
      from.output = static_cast<int>(output - outputs.begin());
    else
      from.input = static_cast<int>(std::find(inputs.begin(), inputs.end(), result.value) - inputs.begin());
    instance->results.push_back(from);
  }
  made.program.check();
  std::vector<size_t> references;
  for (const ProgramContent::Source& source : content_.sources)
    references.push_back(source.argument < 0 ? source.storage.use_count() : 0);
  instance->executable = backend_.prepare(std::move(made.program), instance->inputs);
  if (check_weight_) check_weights(references);
  return instance;
}

/// Params: before – reference counts of the weights before the program was prepared. A prepared program keeps one reference
///                  to each weight, and another one to each weight that it reads
void ProgramSession::check_weights(const std::vector<size_t>& before) {
  constexpr size_t unread = 1;
  for (size_t i = 0; i < content_.sources.size(); ++i) {
    const ProgramContent::Source& source = content_.sources[i];
    if (source.argument < 0 && source.storage.use_count() > before[i] + unread && checked_.insert(source.weight).second)
      check_weight_(source.weight);
  }
}

ProgramSession::Instance& ProgramSession::instance_for(const Sizes& sizes, std::span<const at::Tensor> inputs) {
  if (last_ && last_->sizes == sizes) return *last_;
  for (size_t i = 0; i < inputs.size(); ++i) check_input(i, inputs[i], sizes);
  const auto found = instances_.find(sizes);
  if (found != instances_.end()) return *(last_ = found->second.get());
  if (instances_.size() == most_instances) instances_.erase(instances_.begin());
  auto instance = prepared(sizes);
  return *(last_ = (instances_[sizes] = std::move(instance)).get());
}

std::vector<at::Tensor> ProgramSession::run(std::span<const at::Tensor> inputs) {
  const MutexLock lock(mutex_);
  find_sizes(inputs, sizes_);
  Instance& instance = instance_for(sizes_, inputs);
  for (size_t i = 0; i < content_.sources.size(); ++i) {
    const int argument = content_.sources[i].argument;
    if (argument < 0) continue;
    const at::Tensor& input = inputs[argument];
    const graph::Geometry& expected = instance.arguments[i];
    if (input.scalar_type() != content_.inputs[argument].dtype || input.sizes() != at::IntArrayRef(expected.sizes) ||
        !input.device().is_cpu() || !graph::is_plain(input))
      check_input(argument, input, sizes_);
    const bool as_expected = input.strides() == at::IntArrayRef(expected.strides) && input.storage_offset() == 0;
    if (as_expected) {
      instance.inputs[i] = input.storage();
    } else {
      at::Tensor copy = at::empty_strided(expected.sizes, expected.strides, input.options());
      instance.inputs[i] = copy.copy_(input.detach()).storage();
    }
  }
  std::vector<at::Tensor> results(instance.results.size());
  // Before the run, which may release inputs.
  for (size_t i = 0; i < results.size(); ++i) {
    const Instance::Result& result = instance.results[i];
    if (result.output < 0) results[i] = result.geometry.over(instance.inputs[result.input]);
  }
  instance.executable->run(instance.inputs, {}, instance.outputs);
  for (size_t i = 0; i < results.size(); ++i) {
    const Instance::Result& result = instance.results[i];
    if (result.output >= 0) results[i] = result.geometry.over(instance.outputs[result.output]);
  }
  for (c10::Storage& output : instance.outputs) output = {};
  for (size_t i = 0; i < content_.sources.size(); ++i) {
    if (content_.sources[i].argument >= 0)
      instance.inputs[i] = {};
    else if (!instance.inputs[i])
      instance.inputs[i] = content_.sources[i].storage;
  }
  return results;
}

}  // namespace bellows::export_detail
