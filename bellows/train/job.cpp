#include "bellows/train/job.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>

#include "bellows/core/channels_last.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/io/torch_file.h"
#include "bellows/models/registry.h"
#include "bellows/models/weights.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/optimizers.h"
#include "bellows/train/data_split.h"

namespace bellows::train {

namespace {

int64_t channels_of(const Recipe& recipe, const data::DatasetInfo& info) {
  if (info.image_size.size() == 3) return info.image_size[2];
  const int64_t meant = models::model_entry(recipe.model).input_shape[0];
  return meant > 0 ? meant : 3;
}

/// What training and held-out data have in common. Held-out data follow the training data's description.
data::Dataset prepared(data::Dataset dataset, const Recipe& recipe, const data::DatasetInfo& info) {
  dataset = dataset.require({"image", "label"})
                .decode(channels_of(recipe, info) == 1 ? "gray" : "rgb")
                .channels_last(recipe.channels_last)
                .threads(recipe.loader_threads)
                .prefetch(recipe.prefetch)
                .to(parse_device(recipe.device))
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

template <class Options>
Options optimizer_options(const Recipe& recipe) {
  Options options;
  options.lr = recipe.lr;
  options.weight_decay = recipe.weight_decay;
  options.master_weights = precision_policy(recipe).master_weights;
  options.impl = recipe.optimizer_impl == "loop"      ? optim::Impl::loop
                 : recipe.optimizer_impl == "foreach" ? optim::Impl::foreach
                 : recipe.optimizer_impl == "fused"   ? optim::Impl::fused
                                                      : optim::Impl::automatic;
  if constexpr (requires { options.state_dtype; }) {
    options.state_dtype = recipe.optimizer_state == "int8"   ? optim::State::int8
                          : recipe.optimizer_state == "int4" ? optim::State::int4
                                                             : optim::State::automatic;
  }
  return options;
}

template <class Options>
Options with_momentum(const Recipe& recipe) {
  auto options = optimizer_options<Options>(recipe);
  options.momentum = recipe.momentum;
  return options;
}

template <class Optimizer, class Options>
std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Options& options, const Model& model) {
  return std::make_shared<Optimizer>(model.parameters(), options);
}

data::Dataset train_part(const Recipe& recipe, const DataSplit& split) {
  data::Dataset dataset = split.whole;
  if (!recipe.subset.empty()) {
    const data::Subset chosen = data::load_subset(recipe.subset);
    dataset = dataset.subset(chosen);
    if (!split.held_out.empty()) dataset = split.whole.subset(split.trained(chosen.ids));
  } else if (!split.held_out.empty()) {
    dataset = dataset.subset(split.trained());
  }
  return augmented(prepared(dataset, recipe, dataset.info()), recipe)
      .shuffle(static_cast<uint64_t>(recipe.seed))
      .batch(recipe.batch_size);
}

std::optional<data::Dataset> eval_part(const Recipe& recipe, const DataSplit& split, const data::DatasetInfo& info) {
  constexpr int64_t eval_batch = 256;
  std::optional<data::Dataset> dataset;
  if (!recipe.eval_data.empty()) dataset = data::open(recipe.eval_data, {.otherwise = "test"});
  if (!split.eval_split.empty()) dataset = data::open(recipe.data, {.split = split.eval_split});
  if (!split.held_out.empty()) dataset = split.whole.subset(split.held_out);
  if (!dataset) return {};
  return prepared(*dataset, recipe, info).sequential().batch(eval_batch);
}

}  // namespace

data::Dataset open_train_data(const Recipe& recipe) {
  return train_part(recipe, split_data(recipe));
}

std::optional<data::Dataset> open_eval_data(const Recipe& recipe, const data::Dataset& train) {
  return eval_part(recipe, split_data(recipe), train.info());
}

Model make_model(const Recipe& recipe, const data::DatasetInfo& info) {
  const int64_t classes = recipe.num_classes > 0 ? recipe.num_classes : static_cast<int64_t>(info.classes.size());
  TORCH_CHECK_VALUE(classes > 0, "make_job: num_classes is 0 and the data set names no classes. Set num_classes.");
  const models::ModelEntry entry = models::model_entry(recipe.model);
  TORCH_CHECK_VALUE(entry.input == models::InputKind::image && entry.output == models::OutputKind::sample,
                    "make_job: expected a model that gives an image a class, got \"", recipe.model,
                    "\": ", entry.description, ". Put it into a train::Job with data and a loss of your own.");
  const Model model = entry.make(classes, channels_of(recipe, info));
  if (!recipe.weights.empty()) {
    const NamedTensors weights = io::load_tensors(recipe.weights);
    try {
      models::load_weights(model, weights);
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
  if (recipe.optimizer == "sgd") return optimizer_of<optim::SGD>(with_momentum<optim::SGDOptions>(recipe), model);
  if (recipe.optimizer == "rmsprop")
    return optimizer_of<optim::RMSprop>(with_momentum<optim::RMSpropOptions>(recipe), model);
  if (recipe.optimizer == "adam")
    return optimizer_of<optim::Adam>(optimizer_options<optim::AdamOptions>(recipe), model);
  if (recipe.optimizer == "adagrad")
    return optimizer_of<optim::Adagrad>(optimizer_options<optim::AdagradOptions>(recipe), model);
  if (recipe.optimizer == "lion")
    return optimizer_of<optim::Lion>(optimizer_options<optim::LionOptions>(recipe), model);
  if (recipe.optimizer == "adafactor") {
    // As transformers' documentation fine-tunes: lr and schedules mean what they do for the others.
    auto options = optimizer_options<optim::AdafactorOptions>(recipe);
    options.relative_step = options.scale_parameter = false;
    return optimizer_of<optim::Adafactor>(options, model);
  }
  return optimizer_of<optim::AdamW>(optimizer_options<optim::AdamWOptions>(recipe), model);
}

void keep_masters(torch::optim::Optimizer& optimizer, const amp::MasterWeights& masters) {
  auto* ours = dynamic_cast<optim::LibtorchOptimizer*>(&optimizer);
  if (!ours) return;
  for (const auto& [parameter, master] : masters.pairs()) ours->set_master_weight(parameter, master);
}

amp::Policy precision_policy(const Recipe& recipe) {
  if (recipe.precision == "fp32") return amp::policy("O0");
  return amp::policy(recipe.precision_level, recipe.precision == "fp16" ? at::kHalf : at::kBFloat16);
}

LossFn cross_entropy_loss(const Model& model, double label_smoothing) {
  return [model, label_smoothing](const data::Batch& batch) {
    const at::Tensor logits = model.forward(batch["image"]);
    return StepOutput(at::cross_entropy_loss(logits, batch["label"], {}, at::Reduction::Mean, -100, label_smoothing),
                      logits);
  };
}

Job make_job(const Recipe& recipe) {
  recipe.validate();
  parse_device(recipe.device);  // before minutes are spent on the rest
  seed_everything(static_cast<uint64_t>(recipe.seed));
  const DataSplit split = split_data(recipe);
  data::Dataset train = train_part(recipe, split);
  std::optional<data::Dataset> eval = eval_part(recipe, split, train.info());
  Model model = make_model(recipe, train.info());
  amp::MasterWeights masters;
  if (const amp::Policy policy = precision_policy(recipe); policy.low_weights) {
    amp::PreparedModel prepared = amp::apply(model, policy);
    model = std::move(prepared.model);
    masters = std::move(prepared.masters);
  }
  auto optimizer = make_optimizer(recipe, model);
  keep_masters(*optimizer, masters);
  return {.recipe = recipe,
          .model = model,
          .optimizers = {std::move(optimizer)},
          .loss = cross_entropy_loss(model, recipe.label_smoothing),
          .train = std::move(train),
          .eval = std::move(eval),
          .note = split.held_out_note()};
}

}  // namespace bellows::train
