#include "bench/quant/inference_tasks.h"

#include "bellows/models/bert.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"

namespace bellows::bench {

const std::vector<InferenceTask>& inference_tasks() {
  static const std::vector<InferenceTask> all{{"resnet18", "ResNet-18 forward, 1x224x224"},
                                              {"bert-128", "BERT-base forward, 1x128", 128},
                                              {"bert-14", "BERT-base forward, 1x14", 14}};
  return all;
}

Model model_of(const InferenceTask& task) {
  constexpr int64_t classes = 10;
  models::BertOptions options = models::bert_base();
  options.num_labels = classes;
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  options.mask_padding = false;
  const Model model = task.is_text() ? models::bert(options) : models::resnet18({.num_classes = classes});
  models::set_formula_weights(model);
  model.eval();
  return model;
}

std::vector<std::vector<at::Tensor>> calibration_of(const InferenceTask& task) {
  constexpr int64_t size = 16;
  std::vector<std::vector<at::Tensor>> inputs;
  for (int64_t i = 0; i < size; ++i) {
    const std::string number = i == 0 ? "" : std::to_string(i);
    if (task.is_text())
      inputs.push_back({models::formula_labels("ids" + number, task.length, 30521).view({1, task.length}) + 1});
    else
      inputs.push_back({models::formula_uniform("input" + number, {1, 3, 224, 224}).to(at::kFloat)});
  }
  return inputs;
}

}  // namespace bellows::bench
