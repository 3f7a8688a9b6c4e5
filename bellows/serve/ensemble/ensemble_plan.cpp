#include "bellows/serve/ensemble/ensemble_plan.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/serve/loaded_model.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

/// Returns the sizes with the batch axis.
std::vector<int64_t> full_sizes(const TensorSpec& spec, const ModelSignature& model) {
  std::vector<int64_t> sizes = spec.dims;
  if (model.max_batch_size > 0) sizes.insert(sizes.begin(), -1);
  return sizes;
}

std::string names_of(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) text += (text.empty() ? "" : ", ") + spec.name;
  return text;
}

class Planning {
 public:
  Planning(const ModelSignature& ensemble, const std::vector<EnsembleStep>& steps, const FindModel& find)
      : ensemble_(ensemble), steps_(steps), find_(find) {}

  EnsemblePlan plan() {
    for (const TensorSpec& input : ensemble_.inputs)
      add_tensor({input.name, input.dtype, full_sizes(input, ensemble_), "the ensemble's inputs"});
    for (size_t i = 0; i < steps_.size(); ++i) add_step(i);
    for (size_t i = 0; i < steps_.size(); ++i) add_outputs(i);
    for (size_t i = 0; i < steps_.size(); ++i) connect_inputs(i);
    for (const TensorSpec& output : ensemble_.outputs) {
      const size_t tensor = find_tensor(output.name, "output \"" + output.name + "\" of the ensemble");
      check_fit(tensor, output.dtype, full_sizes(output, ensemble_), "output \"" + output.name + "\" of the ensemble");
      plan_.outputs.push_back(tensor);
    }
    check_order();
    return std::move(plan_);
  }

 private:
  struct Tensor {
    std::string name{};
    c10::ScalarType dtype = c10::kFloat;
    std::vector<int64_t> sizes{};
    std::string source{};
  };

  void add_tensor(Tensor tensor) {
    for (const Tensor& other : tensors_)
      TORCH_CHECK_VALUE(other.name != tensor.name, "ensemble_scheduling: the tensor \"", tensor.name, "\" comes from ",
                        other.source, " and from ", tensor.source, ". Use another name in one output_map.");
    plan_.tensors.push_back(tensor.name);
    tensors_.push_back(std::move(tensor));
  }

  void add_step(size_t index) {
    const EnsembleStep& step = steps_[index];
    EnsemblePlan::Step planned{.model = step.model, .version = step.version == 0 ? "" : std::to_string(step.version)};
    try {
      planned.signature = find_(planned.model, planned.version)->signature();
    } catch (const RequestError& error) {
      TORCH_CHECK_VALUE(false, "ensemble_scheduling: ", step_text(index, step.model), ": ", error.what());
    }
    TORCH_CHECK_VALUE(ensemble_.max_batch_size == 0 || planned.signature->max_batch_size == 0 ||
                          planned.signature->max_batch_size >= ensemble_.max_batch_size,
                      "ensemble_scheduling: ", step_text(index, step.model), ": its max_batch_size is ",
                      planned.signature->max_batch_size, ", which is less than ", ensemble_.max_batch_size,
                      ", that of the ensemble.");
    plan_.steps.push_back(std::move(planned));
  }

  void add_outputs(size_t index) {
    EnsemblePlan::Step& step = plan_.steps[index];
    const std::string where = step_text(index, step.model);
    for (const auto& [name, tensor] : steps_[index].outputs) {
      const size_t place = place_of(step.signature->outputs, name, where, "output_map");
      const TensorSpec& spec = step.signature->outputs[place];
      step.outputs.emplace_back(place, tensors_.size());
      add_tensor({tensor, spec.dtype, full_sizes(spec, *step.signature), where});
    }
  }

  void connect_inputs(size_t index) {
    EnsemblePlan::Step& step = plan_.steps[index];
    const std::string where = step_text(index, step.model);
    for (const auto& [name, tensor] : steps_[index].inputs) place_of(step.signature->inputs, name, where, "input_map");
    for (const TensorSpec& spec : step.signature->inputs) {
      const auto mapped = steps_[index].inputs.find(spec.name);
      TORCH_CHECK_VALUE(mapped != steps_[index].inputs.end(), "ensemble_scheduling: ", where,
                        ": input_map has no entry for the input \"", spec.name, "\" of the model.");
      const std::string what = where + ", input \"" + spec.name + "\"";
      const size_t tensor = find_tensor(mapped->second, what);
      check_fit(tensor, spec.dtype, full_sizes(spec, *step.signature), what);
      step.inputs.push_back(tensor);
    }
  }

  static size_t place_of(const std::vector<TensorSpec>& specs, const std::string& name, const std::string& where,
                         const char* map) {
    const auto found = std::ranges::find(specs, name, &TensorSpec::name);
    TORCH_CHECK_VALUE(found != specs.end(), "ensemble_scheduling: ", where, ": ", map, ": the model has no tensor \"",
                      name, "\". Its tensors: ", names_of(specs), ".");
    return static_cast<size_t>(found - specs.begin());
  }

  size_t find_tensor(const std::string& name, const std::string& what) const {
    const auto found = std::ranges::find(tensors_, name, &Tensor::name);
    TORCH_CHECK_VALUE(found != tensors_.end(), "ensemble_scheduling: ", what, ": the tensor \"", name,
                      "\" is neither an input of the ensemble nor in an output_map.");
    return static_cast<size_t>(found - tensors_.begin());
  }

  void check_fit(size_t index, c10::ScalarType dtype, const std::vector<int64_t>& sizes,
                 const std::string& what) const {
    const Tensor& tensor = tensors_[index];
    TORCH_CHECK_VALUE(tensor.dtype == dtype, "ensemble_scheduling: ", what, ": expected ", type_name(dtype),
                      ", but the tensor \"", tensor.name, "\" from ", tensor.source, " has ", type_name(tensor.dtype),
                      ".");
    const bool fits =
        std::ranges::equal(tensor.sizes, sizes, [](int64_t a, int64_t b) { return a == b || a < 0 || b < 0; });
    TORCH_CHECK_VALUE(fits, "ensemble_scheduling: ", what, ": expected the shape ", shape_text(sizes),
                      ", but the tensor \"", tensor.name, "\" from ", tensor.source, " has ", shape_text(tensor.sizes),
                      ", with the batch axis.");
  }

  /// Each step must become ready if all steps before it are done.
  void check_order() const {
    std::vector<bool> known(tensors_.size(), false), done(plan_.steps.size(), false);
    for (size_t i = 0; i < ensemble_.inputs.size(); ++i) known[i] = true;
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t i = 0; i < plan_.steps.size(); ++i) {
        const EnsemblePlan::Step& step = plan_.steps[i];
        if (done[i] || !std::ranges::all_of(step.inputs, [&](size_t tensor) { return known[tensor]; })) continue;
        for (const auto& [place, tensor] : step.outputs) known[tensor] = true;
        done[i] = progress = true;
      }
    }
    std::string waiting;
    for (size_t i = 0; i < done.size(); ++i) {
      if (!done[i]) waiting += (waiting.empty() ? "" : ", ") + step_text(i, plan_.steps[i].model);
    }
    TORCH_CHECK_VALUE(waiting.empty(), "ensemble_scheduling: these steps wait for each other's results: ", waiting,
                      ".");
  }

  const ModelSignature& ensemble_;
  const std::vector<EnsembleStep>& steps_;
  const FindModel& find_;
  EnsemblePlan plan_{};
  std::vector<Tensor> tensors_{};
};

}  // namespace

EnsemblePlan plan_ensemble(const ModelSignature& ensemble, const std::vector<EnsembleStep>& steps,
                           const FindModel& find) {
  return Planning(ensemble, steps, find).plan();
}

std::string step_text(size_t index, const std::string& model) {
  return c10::str("step ", index + 1, " (model \"", model, "\")");
}

bool same_tensors(const ModelSignature& first, const ModelSignature& second) {
  const auto same = [](const std::vector<TensorSpec>& a, const std::vector<TensorSpec>& b) {
    return std::ranges::equal(a, b, [](const TensorSpec& left, const TensorSpec& right) {
      return left.name == right.name && left.dtype == right.dtype && left.dims == right.dims;
    });
  };
  return &first == &second || (first.max_batch_size == second.max_batch_size && same(first.inputs, second.inputs) &&
                               same(first.outputs, second.outputs));
}

}  // namespace bellows::serve
