#include "bench/ddp/tasks.h"

#include <torch/torch.h>

#include "bellows/models/bert.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/resnet.h"

namespace bellows::bench {

namespace {

// bench/peers/ddp.py makes the same.
constexpr int64_t images = 32, image_size = 64, classes = 1000;
constexpr int64_t sequences = 8, length = 128, features = 64, digits = 10;

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& y) {
  return torch::cross_entropy_loss(output, y);
}

Model small_bert() {
  models::BertOptions options = models::bert_20m();
  options.hidden_dropout_prob = options.attention_probs_dropout_prob = 0;
  options.mask_padding = false;  // as transformers without a mask
  return models::bert(options);
}

Model small_mlp() {
  using namespace torch::nn;
  return Model::of(Sequential(Linear(features, 64), ReLU(), Linear(64, digits)), "mlp");
}

}  // namespace

Task make_task(const std::string& name, int rank, int ranks) {
  const auto part = [&](const at::Tensor& whole) { return whole.chunk(ranks)[static_cast<size_t>(rank)].contiguous(); };
  const auto uniform = [&](const char* what, const std::vector<int64_t>& sizes) {
    return part(models::formula_uniform(what, sizes).to(at::kFloat));
  };
  const auto with_weights = [](const std::function<Model()>& plain) {
    return [plain] {
      Model model = plain();
      models::set_formula_weights(model);
      model.train();
      return model;
    };
  };
  const auto task = [&](const std::function<Model()>& plain, at::Tensor x, at::Tensor y, auto* loss) {
    const std::function<Model()> make = with_weights(plain);
    return Task{make, make(), std::move(x), std::move(y), loss};
  };
  if (name == "resnet18")
    return task([] { return models::resnet18({.num_classes = classes}); },
                uniform("input", {images, 3, image_size, image_size}),
                part(models::formula_labels("labels", images, classes)), cross_entropy);
  if (name == "mlp")
    return task(small_mlp, uniform("input", {images, features}), part(models::formula_labels("labels", images, digits)),
                cross_entropy);
  const at::Tensor ids = models::formula_labels("ids", sequences * length, models::bert_20m().vocab_size);
  return task(small_bert, part(ids.view({sequences, length})), part(models::formula_labels("labels", sequences, 2)),
              cross_entropy);
}

}  // namespace bellows::bench
