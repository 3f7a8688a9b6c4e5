#include "bellows/train/inference/inference_model.h"

#include <chrono>
#include <utility>
#include <vector>

#include "bellows/compile/compile.h"
#include "bellows/core/device.h"
#include "bellows/system/stop.h"

namespace bellows::train {

namespace {

/// Copies the inputs that are present. Compiled functions take defined tensors only.
std::vector<at::Tensor> present(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& input : inputs) {
    if (input.defined()) defined.push_back(input);
  }
  return defined;
}

class CompiledModel final : public ModelWrapper {
 public:
  explicit CompiledModel(const Model& model)
      : ModelWrapper(model),
        forward_(bellows::compile(Forward([this](const std::vector<at::Tensor>& defined) { return run(defined); }),
                                  {.frozen = model})) {}

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    is_present_.clear();
    for (const at::Tensor& input : inputs) is_present_.push_back(input.defined());
    return forward_(present(inputs));
  }

 private:
  using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& defined) const {
    std::vector<at::Tensor> inputs(is_present_.size());
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (is_present_[i]) inputs[i] = defined[next++];
    }
    return inner().forward_all(inputs);
  }

  std::vector<bool> is_present_;  ///< which inputs the current call has
  Compiled<Forward> forward_;
};

class ObservedModel final : public ModelWrapper {
 public:
  ObservedModel(const Model& model, std::function<void(int64_t, double)> after)
      : ModelWrapper(model), after_(std::move(after)) {
    const std::vector<at::Tensor> parameters = model.parameters();
    if (!parameters.empty()) device_ = parameters.front().device();
  }

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    throw_if_stopped("running the model");
    const auto begin = std::chrono::steady_clock::now();
    std::vector<at::Tensor> outputs = inner().forward_all(inputs);
    synchronize(device_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    int64_t samples = 0;
    for (const at::Tensor& input : inputs) {
      if (input.defined() && samples == 0) samples = input.size(0);
    }
    after_(samples, seconds);
    return outputs;
  }

 private:
  c10::Device device_ = c10::kCPU;
  std::function<void(int64_t, double)> after_;
};

}  // namespace

Model compiled_model(const Model& model) {
  return Model(model.name(), std::make_shared<CompiledModel>(model));
}

Model observed_model(const Model& model, std::function<void(int64_t samples, double seconds)> after) {
  return Model(model.name(), std::make_shared<ObservedModel>(model, std::move(after)));
}

}  // namespace bellows::train
