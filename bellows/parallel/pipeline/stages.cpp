#include "bellows/parallel/pipeline/stages.h"

#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <set>
#include <utility>

namespace bellows::parallel {

namespace {

/// Several models with common names, which run one after the other.
class ModelList final : public Model::Impl {
 public:
  explicit ModelList(std::vector<Model> models) : models_(std::move(models)) {}

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const Model& model : models_) x = model.forward(x);
    return x;
  }
  NamedTensors named_parameters() const override {
    return joined([](const Model& model) { return model.named_parameters(); });
  }
  NamedTensors named_buffers() const override {
    return joined([](const Model& model) { return model.named_buffers(); });
  }
  void set_training(bool on) override {
    for (const Model& model : models_) model.train(on);
  }
  bool training() const override { return models_.front().training(); }
  void to(c10::Device device) override {
    for (const Model& model : models_) model.to(device);
  }
  void to(c10::ScalarType dtype) override {
    for (const Model& model : models_) model.to(dtype);
  }

 private:
  template <class Get>
  NamedTensors joined(const Get& get) const {
    NamedTensors all;
    for (size_t i = 0; i < models_.size(); ++i) {
      for (auto& [name, tensor] : get(models_[i])) all.emplace_back(std::to_string(i) + "." + name, tensor);
    }
    return all;
  }

  std::vector<Model> models_;
};

int64_t bytes_of_part(const ModelPart& part) {
  std::set<const at::TensorImpl*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : part.tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

/// Puts the gradients of tensors aside, and restores them at the end.
class GradientsAside {
 public:
  explicit GradientsAside(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    for (at::Tensor& tensor : tensors_) gradients_.push_back(std::exchange(tensor.mutable_grad(), at::Tensor()));
  }
  ~GradientsAside() {
    // In reverse order, because only the first entry of a tensor that is listed twice has its gradient.
    for (size_t i = tensors_.size(); i-- > 0;) tensors_[i].mutable_grad() = gradients_[i];
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  std::vector<at::Tensor> tensors_, gradients_;
};

/// Runs forward and backward of a part once. Returns the output and the time.
std::pair<at::Tensor, double> time_part(const ModelPart& part, const at::Tensor& x,
                                        const std::vector<at::Tensor>& inputs) {
  at::Tensor input = x;
  if (x.defined() && x.is_floating_point()) input = x.detach().requires_grad_();
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor y = part.run(input, inputs);
  if (y.requires_grad()) y.backward(at::ones_like(y));
  return {y.detach(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

/// A division of the first parts of a model into stages.
struct Division {
  double slowest_s = std::numeric_limits<double>::infinity();  ///< infinite: impossible
  std::vector<int> first_parts = {};
};

/// Params:  before – before[n] is the best division of the first n parts
/// Returns: the best divisions with one stage more
std::vector<Division> with_another_stage(const std::vector<Division>& before, const std::vector<PartCost>& costs,
                                         int64_t max_bytes) {
  std::vector<Division> best(before.size());
  for (size_t end = 1; end < before.size(); ++end) {
    double time_s = 0;
    int64_t bytes = 0;
    for (size_t first = end; first-- > 0;) {
      time_s += costs[first].time_s;
      bytes += costs[first].parameter_bytes;
      if (max_bytes > 0 && bytes > max_bytes) break;
      const double slowest_s = std::max(before[first].slowest_s, time_s);
      if (slowest_s >= best[end].slowest_s) continue;
      best[end] = {slowest_s, before[first].first_parts};
      best[end].first_parts.push_back(static_cast<int>(first));
    }
  }
  return best;
}

}  // namespace

ModelParts parts_of(const std::vector<Model>& models, const std::string& name) {
  TORCH_CHECK_VALUE(!models.empty(), "parts_of: expected at least one model, got none.");
  ModelParts result{.model = Model(name, std::make_shared<ModelList>(models))};
  for (size_t i = 0; i < models.size(); ++i) {
    std::vector<at::Tensor> tensors = models[i].parameters();
    for (const at::Tensor& buffer : models[i].buffers()) tensors.push_back(buffer);
    result.parts.push_back({std::to_string(i), std::move(tensors),
                            [model = models[i], i](const at::Tensor& x, const std::vector<at::Tensor>& inputs) {
                              return i == 0 ? model.forward_all(inputs).front() : model.forward(x);
                            }});
  }
  return result;
}

std::vector<PartCost> measure_parts(const ModelParts& parts, const std::vector<at::Tensor>& inputs, int runs) {
  TORCH_CHECK_VALUE(runs >= 1, "measure_parts: runs must be at least 1, got ", runs, ".");
  std::vector<PartCost> costs;
  at::Tensor x;
  for (const ModelPart& part : parts.parts) {
    const GradientsAside aside(part.tensors);
    at::Tensor y = time_part(part, x, inputs).first;  // warms up caches
    PartCost cost{.time_s = std::numeric_limits<double>::infinity(), .parameter_bytes = bytes_of_part(part)};
    for (int run = 0; run < runs; ++run) cost.time_s = std::min(cost.time_s, time_part(part, x, inputs).second);
    costs.push_back(cost);
    x = std::move(y);
  }
  return costs;
}

std::vector<int> balance_stages(const std::vector<PartCost>& costs, int stages, int64_t max_parameter_bytes) {
  const int count = static_cast<int>(costs.size());
  TORCH_CHECK_VALUE(stages >= 1 && count >= stages, "balance_stages: cannot divide ", count, " parts into ", stages,
                    " stages. Each stage needs at least one part.");
  // Divisions of the first n parts, first into one stage, then into two stages, and so on.
  std::vector<Division> best(costs.size() + 1);
  best[0].slowest_s = 0;
  for (int stage = 0; stage < stages; ++stage) best = with_another_stage(best, costs, max_parameter_bytes);
  const auto largest = std::max_element(costs.begin(), costs.end(), [](const PartCost& a, const PartCost& b) {
    return a.parameter_bytes < b.parameter_bytes;
  });
  TORCH_CHECK_VALUE(!best.back().first_parts.empty(), "balance_stages: no division into ", stages, " stages fits into ",
                    max_parameter_bytes, " bytes per stage. The largest part, number ", largest - costs.begin(),
                    ", has ", largest->parameter_bytes, " bytes. Use more stages or a higher limit.");
  return best.back().first_parts;
}

void check_stages(const ModelParts& parts, const std::vector<int>& first_parts) {
  const int count = static_cast<int>(parts.parts.size());
  TORCH_CHECK_VALUE(
      !first_parts.empty() && first_parts.front() == 0 && first_parts.back() < count &&
          std::adjacent_find(first_parts.begin(), first_parts.end(), std::greater_equal<>()) == first_parts.end(),
      "pipeline: the first parts of the stages are [", c10::Join(", ", first_parts), "]. Expected numbers from 0 to ",
      count - 1, " in ascending order that start with 0.");
  std::set<const at::TensorImpl*> known, parameters;
  for (const at::Tensor& parameter : parts.model.parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
  const auto is_parameter = [&](const at::Tensor& t) { return parameters.count(t.unsafeGetTensorImpl()) != 0; };
  for (size_t stage = 0; stage < first_parts.size(); ++stage) {
    const int end = stage + 1 < first_parts.size() ? first_parts[stage + 1] : count;
    bool any = false;
    for (int part = first_parts[stage]; part < end; ++part) {
      for (const at::Tensor& tensor : parts.parts[static_cast<size_t>(part)].tensors) {
        known.insert(tensor.unsafeGetTensorImpl());
        any = any || is_parameter(tensor);
      }
    }
    TORCH_CHECK_VALUE(any, "pipeline: stage ", stage, " (parts ", first_parts[stage], " to ", end - 1,
                      ") has no parameters. Add its parts to another stage.");
  }
  for (const auto& [name, tensor] : parts.model.state_dict()) {
    TORCH_CHECK_VALUE(known.count(tensor.unsafeGetTensorImpl()) != 0, "pipeline: \"", name,
                      "\" belongs to no part of the model. List it in ModelPart::tensors of the part that uses it.");
  }
}

}  // namespace bellows::parallel
