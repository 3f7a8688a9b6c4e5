#include "bellows/models/exported/class_count.h"

#include <c10/util/Exception.h>

#include <utility>

namespace bellows::models {

namespace {

class WithClasses final : public ModelWrapper {
 public:
  WithClasses(Model inner, int64_t classes, std::string kind)
      : ModelWrapper(std::move(inner)), classes_(classes), kind_(std::move(kind)) {}

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> outputs = inner().forward_all(inputs);
    const at::Tensor& scores = outputs.front();
    const bool single = classes_ == 1 && scores.dim() == 1;
    TORCH_CHECK_VALUE(single || (scores.dim() >= 2 && scores.size(1) == classes_), kind_, " ", inner().name(),
                      ": expected logits of shape [batch, ", classes_, "], got ", scores.sizes(), " for an input of ",
                      inputs.front().sizes(), ". Set num_classes to the number of logits of the program.");
    return outputs;
  }

 private:
  int64_t classes_;
  std::string kind_;
};

}  // namespace

Model with_class_count(const Model& program, int64_t classes, const std::string& kind, const std::string& advice) {
  bool any = false;
  for (const auto& [name, parameter] : program.named_parameters()) any |= parameter.requires_grad();
  TORCH_CHECK_VALUE(any, kind, " ", program.name(),
                    ": the program cannot be trained, because it has no parameters that require gradients. ", advice);
  return Model(program.name(), std::make_shared<WithClasses>(program, classes, kind));
}

}  // namespace bellows::models
