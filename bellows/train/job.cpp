#include "bellows/train/job.h"

#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <filesystem>

#include "bellows/core/channels_last.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/io/torch_file.h"
#include "bellows/models/registry.h"
#include "bellows/optim/optimizers.h"

namespace bellows::train {

namespace {

int64_t channels_of(const Recipe& recipe, const data::DatasetInfo& info) {
  return info.image_size.size() == 3 ? info.image_size[2] : models::registry().at(recipe.model).input_shape[0];
}

/// What training and held-out data have in common. Held-out data follow the training data's description.
data::Dataset prepared(data::Dataset dataset, const Recipe& recipe, const data::DatasetInfo& info) {
  dataset = dataset.decode(channels_of(recipe, info) == 1 ? "gray" : "rgb")
                .channels_last(recipe.channels_last)
                .threads(recipe.loader_threads)
                .prefetch(recipe.prefetch)
                .cache(recipe.cache_mb << 20)
                .on_bad_sample(recipe.bad_samples == "skip" ? data::OnBadSample::skip : data::OnBadSample::fail);
  if (recipe.num_classes > 0) dataset = dataset.num_classes(recipe.num_classes);
  if (recipe.image_size > 0) dataset = dataset.resize(recipe.image_size, recipe.image_size);
  return info.mean.empty() ? dataset : dataset.normalize(info.mean, info.std);
}

data::Dataset augmented(const data::Dataset& dataset, const Recipe& recipe) {
  if (recipe.augment == "none") return dataset;
  const auto& own_size = dataset.info().image_size;
  const int64_t height = recipe.image_size > 0 ? recipe.image_size : own_size.size() == 3 ? own_size[0] : 0;
  const int64_t width = recipe.image_size > 0 ? recipe.image_size : own_size.size() == 3 ? own_size[1] : 0;
  TORCH_CHECK_VALUE(height > 0, "make_job: augment = ", recipe.augment, " needs to know the size of the images; \"",
                    recipe.data, "\" does not say it. Set image_size.");
  const data::Dataset cropped = dataset.random_crop(height, width, std::max<int64_t>(1, std::max(height, width) / 8));
  return recipe.augment == "crop_flip" ? cropped.flip() : cropped;
}

/// A folder's split, or the shards that `url` names.
data::Dataset open_split(const std::string& url, const std::string& split) {
  return std::filesystem::is_directory(url) ? data::open(url, {.split = split}) : data::open(url);
}

}  // namespace

data::Dataset open_train_data(const Recipe& recipe) {
  TORCH_CHECK_VALUE(!recipe.data.empty(), "make_job: the recipe names no data. Set `data` to a folder or shards.");
  const data::Dataset dataset = open_split(recipe.data, "train");
  return augmented(prepared(dataset, recipe, dataset.info()), recipe)
      .shuffle(static_cast<uint64_t>(recipe.seed))
      .batch(recipe.batch_size);
}

std::optional<data::Dataset> open_eval_data(const Recipe& recipe, const data::Dataset& train) {
  constexpr int64_t eval_batch = 256;
  const auto& splits = train.info().splits;
  const bool has_test = std::find(splits.begin(), splits.end(), "test") != splits.end();
  if (recipe.eval_data.empty() && !has_test) return {};
  const data::Dataset dataset = open_split(recipe.eval_data.empty() ? recipe.data : recipe.eval_data, "test");
  return prepared(dataset, recipe, train.info()).sequential().batch(eval_batch);
}

Model make_model(const Recipe& recipe, const data::DatasetInfo& info) {
  const int64_t classes = recipe.num_classes > 0 ? recipe.num_classes : static_cast<int64_t>(info.classes.size());
  TORCH_CHECK_VALUE(classes > 0, "make_job: num_classes is 0 and the data set names no classes. Set num_classes.");
  const Model model = models::registry().at(recipe.model).make(classes, channels_of(recipe, info));
  if (!recipe.weights.empty()) {
    const NamedTensors weights = io::load_tensors(recipe.weights);
    try {
      load_state_dict(model, weights);
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, "make_job: weights = ", recipe.weights, ": ", user_message(error));
    }
  }
  place_model(recipe, model);
  return model;
}

void place_model(const Recipe& recipe, const Model& model) {
  model.to(parse_device(recipe.device));
  if (recipe.channels_last) to_channels_last(model);
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Recipe& recipe, const Model& model) {
  const optim::Impl impl = recipe.optimizer_impl == "loop" ? optim::Impl::loop : optim::Impl::foreach;
  if (recipe.optimizer == "adamw") {
    return std::make_shared<optim::AdamW>(
        model.parameters(), optim::AdamWOptions{.lr = recipe.lr, .weight_decay = recipe.weight_decay, .impl = impl});
  }
  return std::make_shared<optim::SGD>(
      model.parameters(),
      optim::SGDOptions{
          .lr = recipe.lr, .momentum = recipe.momentum, .weight_decay = recipe.weight_decay, .impl = impl});
}

LossFn cross_entropy_loss(const Model& model) {
  return [model](const data::Batch& batch) {
    return at::cross_entropy_loss(model.forward(batch["image"]), batch["label"]);
  };
}

Job make_job(const Recipe& recipe) {
  recipe.validate();
  parse_device(recipe.device);  // before minutes are spent on the rest
  seed_everything(static_cast<uint64_t>(recipe.seed));
  data::Dataset train = open_train_data(recipe);
  std::optional<data::Dataset> eval = open_eval_data(recipe, train);
  const Model model = make_model(recipe, train.info());
  return {.recipe = recipe,
          .model = model,
          .optimizer = make_optimizer(recipe, model),
          .loss = cross_entropy_loss(model),
          .train = std::move(train),
          .eval = std::move(eval)};
}

}  // namespace bellows::train
