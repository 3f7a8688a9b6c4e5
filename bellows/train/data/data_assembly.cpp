#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <limits>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/data/classes.h"
#include "bellows/data/field_groups.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/order/buckets.h"
#include "bellows/data/order/labels.h"
#include "bellows/data/order/packing.h"
#include "bellows/data/picture.h"
#include "bellows/data/text/text_source.h"
#include "bellows/data/without_fields.h"
#include "bellows/io/images/image.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

using models::InputKind;

constexpr const char* features_name = "features";  // for a model with one input of numbers

/// Fields that a model with numeric input reads: those of the recipe, or all scalar numbers except the target.
std::vector<std::string> feature_fields(const ResolvedJob& job, const data::Sample& sample) {
  const Recipe& recipe = job.recipe;
  std::vector<std::string> targets = split_list(recipe.target);
  targets.insert(targets.end(), {"label", "cls", "target"});
  std::vector<std::string> names = split_list(recipe.features);
  if (!names.empty() && recipe.features != "all") return names;
  names = data::number_fields(sample, targets);
  if (!names.empty()) return names;
  for (const data::Field& field : sample.fields) {
    if (field.is_array && std::ranges::find(targets, field.name) == targets.end()) names.emplace_back(field.name);
  }
  TORCH_CHECK_VALUE(
      names.size() == 1, "the model \"", recipe.model, "\" reads numbers, but ", sample.where(), " has ", names.size(),
      " arrays and no single numbers besides the target. Set features to the fields to read, separated by commas.");
  return names;
}

/// Whether batches contain targets, as for training and evaluation, or only the inputs of the model.
enum class Targets { required, left_out };

/// Combines fields into arrays: the model's inputs, and the target unless it is a class label.
data::Dataset with_arrays(const data::Dataset& dataset, const ResolvedJob& job, Targets targets = Targets::required) {
  TORCH_CHECK_VALUE(dataset.size() > 0, "data: \"", job.recipe.data, "\" has no samples.");
  std::vector<data::FieldGroup> groups;
  const int64_t side = job.recipe.image_size;
  if (job.model.input == InputKind::arrays) {
    // The training data decide, so that other data with more columns or another order give the same features.
    const data::Dataset& described = job.data && job.data->whole.size() > 0 ? job.data->whole : dataset;
    if (job.model.inputs.empty()) groups.push_back({features_name, feature_fields(job, described.source()->read(0))});
    for (const models::InputSpec& input : job.model.inputs) groups.push_back({input.name, {input.name}, side, side});
  }
  if (job.task.target == "target" && targets == Targets::required) {
    std::vector<std::string> fields = split_list(job.recipe.target);
    if (fields.empty()) fields = {"target"};
    groups.push_back({"target", std::move(fields), side, side, /*mask=*/true});
  }
  if (groups.empty()) return dataset;
  return data::Dataset(data::group_fields(dataset.source(), std::move(groups)), dataset.info());
}

/// Number of elements of an array in the first sample.
int64_t width_of(const ResolvedJob& job, const std::string& name) {
  const data::Dataset arrays = with_arrays(job.split().whole, job);
  const data::Sample first = arrays.source()->read(0);
  const data::Field* field = first.find(name);
  TORCH_CHECK_VALUE(field && field->is_array, "data: ", first.where(), " has no array \"", name, "\".");
  return c10::multiply_integers(field->sizes);
}

/// The tensors that each batch must have.
std::vector<std::string> required(std::vector<std::string> inputs, const ResolvedJob& job, Targets targets) {
  if (targets == Targets::required) inputs.push_back(job.task.target);
  return inputs;
}

data::Dataset prepared_images(const data::Dataset& dataset, const ResolvedJob& job, Targets targets) {
  const Recipe& recipe = job.recipe;
  const data::DatasetInfo info = job.info();
  data::Dataset images = dataset.require(required({"image"}, job, targets))
                             .decode(image_channels(job) == 1 ? "gray" : "rgb")
                             .channels_last(recipe.channels_last)
                             .cache(recipe.image_cache_mb << 20);
  if (recipe.image_size > 0) images = images.resize(recipe.image_size, recipe.image_size);
  return info.mean.empty() ? images : images.normalize(info.mean, info.std);
}

/// The fields in `text_field`: none, one, or two for pairs of texts.
std::vector<std::string> text_fields(const Recipe& recipe) {
  std::vector<std::string> fields = split_list(recipe.text_field);
  check_recipe(fields.size() <= 2, "text_field: expected one field, or two for pairs of texts, got ", recipe.text_field,
               ".");
  return fields;
}

/// Params: max_tokens – 0: texts are not truncated
std::shared_ptr<const data::TextSource> texts_of(const data::Dataset& dataset, const ResolvedJob& job,
                                                 int64_t max_tokens) {
  const std::vector<std::string> fields = text_fields(job.recipe);
  return std::make_shared<const data::TextSource>(
      dataset.source(), data::TextOptions{.field = fields.empty() ? "" : fields[0],
                                          .pair_field = fields.size() > 1 ? fields[1] : "",
                                          .tokenizer = job.tokenizer,
                                          .max_tokens = max_tokens,
                                          .vocabulary = job.input_width(),
                                          .labels = job.model.output == models::OutputKind::sample});
}

/// Ranks that divide sequences need rows whose length is a multiple of the result.
/// Params: length – largest length of a row; 0: not limited
int64_t chunks_of_rows(const ResolvedJob& job, int64_t length) {
  const int64_t chunks = context_chunks(job.recipe);
  check_recipe(length % chunks == 0, "max_length must be a multiple of ", chunks, " with mesh = ", job.recipe.mesh,
               ", because each rank of the axis context computes two of ", chunks, " equal chunks of a text, got ",
               length, ". Change max_length, or remove the axis context.");
  return chunks;
}

data::Dataset prepared_texts(const data::Dataset& dataset, const ResolvedJob& job, Targets targets) {
  TORCH_CHECK_VALUE(!job.tokenizer || job.tokenizer->pads, "tokenizer: the model \"", job.recipe.model,
                    "\" uses token 0 for padding, but token 0 is a piece of text in ", job.tokenizer->description,
                    ". Set tokenizer to the one that the model was trained with, or to bytes.");
  const data::Dataset texts(texts_of(dataset, job, job.max_length()), dataset.info());
  const int64_t chunks = chunks_of_rows(job, job.max_length());
  if (text_fields(job.recipe).size() < 2)
    return texts.require(required({"tokens"}, job, targets)).pad("tokens", 0, chunks);
  check_recipe(chunks == 1 && pipeline_ranks(job.recipe) == 1, "text_field = ", job.recipe.text_field,
               ": pairs of texts do not work with the axes context and pipeline of mesh = ", job.recipe.mesh,
               ". Remove these axes.");
  return texts.require(required({"tokens", "token_type_ids"}, job, targets)).pad("tokens").pad("token_type_ids");
}

/// Packs several texts into each row, for language models. Each text is tokenized once to determine its length.
data::Dataset packed_texts(const data::Dataset& dataset, const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  check_recipe(text_fields(recipe).size() < 2, "text_field = ", recipe.text_field,
               ": a model that predicts the next token reads one text per sample. Name one field.");
  const auto texts = texts_of(dataset, job, 0);
  const std::vector<int64_t> lengths =
      recipe.bad_samples == "skip" ? texts->lengths() : data::read_lengths(*texts, "tokens");
  if (const auto bad = std::ranges::count(lengths, 0); bad > 0)
    log_warn("data: ", bad, " of ", lengths.size(), " texts cannot be used and are skipped (bad_samples: skip).");
  const int64_t row_length = job.row_length();
  check_recipe(row_length != 1, "max_length must be at least 2, got 1: the model \"", recipe.model,
               "\" predicts each token from the tokens before it.");
  chunks_of_rows(job, row_length);
  const data::Packing packing =
      data::pack_rows(lengths, {.row_length = row_length, .seed = static_cast<uint64_t>(recipe.seed)});
  return data::Dataset(data::packed(texts, "tokens", packing), dataset.info()).require({"tokens", "segment_ids"});
}

data::Dataset prepared_series(const data::Dataset& dataset, const ResolvedJob& job, Targets targets) {
  return dataset.require(required({"series"}, job, targets)).pad("series", std::numeric_limits<double>::quiet_NaN());
}

data::Dataset prepared_arrays(const data::Dataset& dataset, const ResolvedJob& job, Targets targets) {
  std::vector<std::string> inputs;
  for (const models::InputSpec& input : job.model.inputs) inputs.push_back(input.name);
  if (job.model.inputs.empty()) inputs.emplace_back(features_name);
  return dataset.require(required(std::move(inputs), job, targets));
}

/// Converts labels that are names to numbers, by the training data's classes.
data::Dataset with_numbered_labels(const data::Dataset& dataset, const DataSplit& split) {
  if (!split.named_labels && !data::has_named_labels(*dataset.source())) return dataset;
  return data::Dataset(data::number_labels(dataset.source(), split.classes), dataset.info());
}

data::Dataset with_inputs(const data::Dataset& dataset, const ResolvedJob& job, Targets targets) {
  if (job.task.loss == LossKind::next_token) return packed_texts(dataset, job);
  const bool numbers_labels = job.task.classifies_samples() && targets == Targets::required;
  const data::Dataset labelled = numbers_labels ? with_numbered_labels(dataset, job.split()) : dataset;
  const data::Dataset known = with_arrays(labelled, job, targets);
  switch (job.model.input) {
    case InputKind::image:
      return prepared_images(known, job, targets);
    case InputKind::series:
      return prepared_series(known, job, targets);
    case InputKind::arrays:
      return prepared_arrays(known, job, targets);
    default:
      return prepared_texts(known, job, targets);
  }
}

/// Settings that training and held-out data share. Held-out data use the training data's description.
data::Dataset prepared(const data::Dataset& dataset, const ResolvedJob& job, Targets targets = Targets::required) {
  const Recipe& recipe = job.recipe;
  const bool checks_labels =
      targets == Targets::required && (job.task.classifies_samples() || job.task.loss == LossKind::next_token);
  return with_inputs(dataset, job, targets)
      .num_classes(checks_labels ? job.num_classes() : 0)
      .threads(recipe.num_workers)
      .prefetch(recipe.prefetch)
      .to(job.device)
      .on_bad_sample(recipe.bad_samples == "skip" ? data::OnBadSample::skip : data::OnBadSample::fail);
}

/// Height and width of the images on which the model was trained; nothing if they are unknown.
std::optional<std::array<int64_t, 2>> trained_image_size(const ResolvedJob& job) {
  const data::DatasetInfo info = job.info();
  if (info.image_size.size() == 3) return std::array{info.image_size[0], info.image_size[1]};
  if (!job.data || job.data->whole.size() == 0) return std::nullopt;
  const data::Sample first = job.data->whole.source()->read(0);
  const data::Field* picture = data::find_picture(first);
  if (!picture) return std::nullopt;
  if (picture->is_array) return std::array{picture->sizes[0], picture->sizes[1]};
  const io::ImageInfo size = io::image_info(picture->bytes);
  return std::array{size.height, size.width};
}

/// The fields of a sample that training uses as targets.
std::vector<std::string> target_fields(const Recipe& recipe) {
  std::vector<std::string> fields = split_list(recipe.target);
  fields.insert(fields.end(), {"label", "cls", "json", "target"});
  for (const std::string& text : text_fields(recipe)) std::erase(fields, text);
  return fields;
}

/// Height and width of the training images; 0 if they are unknown.
std::array<int64_t, 2> training_size(const data::Dataset& dataset, const Recipe& recipe) {
  if (recipe.image_size > 0) return {recipe.image_size, recipe.image_size};
  const auto& own_size = dataset.info().image_size;
  return own_size.size() == 3 ? std::array{own_size[0], own_size[1]} : std::array<int64_t, 2>{0, 0};
}

/// The crops of `augment: crop` and `augment: crop_flip`.
data::Dataset cropped(const data::Dataset& dataset, const Recipe& recipe) {
  const auto [height, width] = training_size(dataset, recipe);
  TORCH_CHECK_VALUE(height > 0, "augment = ", recipe.augment, " needs images of one size, but \"", recipe.data,
                    "\" does not name a size. Set image_size.");
  const data::Dataset shifted = dataset.random_crop(height, width, std::max<int64_t>(1, std::max(height, width) / 8));
  return recipe.augment == "crop_flip" ? shifted.flip() : shifted;
}

/// Prepares training images, and changes them as the recipe's `augment` says.
data::Dataset augmented(const data::Dataset& dataset, const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  const std::optional<data::AugmentList> list = augment_list(recipe);
  if (!list) return recipe.augment == "none" ? prepared(dataset, job) : cropped(prepared(dataset, job), recipe);
  const auto [height, width] = training_size(dataset, recipe);
  ResolvedJob own = job;
  if (list->sets_size()) own.recipe.image_size = 0;  // the list starts from the original images
  const data::AugmentContext context{
      .height = height, .width = width, .mean = job.info().mean, .num_classes = job.num_classes()};
  try {
    return list->apply(prepared(dataset, own), context);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "augment = ", recipe.augment, ": ", user_message(error));
  }
}

data::Dataset ordered(const data::Dataset& dataset, const Recipe& recipe) {
  const auto seed = static_cast<uint64_t>(recipe.seed);
  const auto* texts = dynamic_cast<const data::TextSource*>(dataset.source().get());
  if (!recipe.length_buckets || !texts) return dataset.shuffle(seed);
  constexpr int64_t batches_sorted = 64;
  return dataset.order(
      data::bucketed(texts->lengths(), {.together = recipe.batch_size, .window = batches_sorted * recipe.batch_size}),
      seed);
}

}  // namespace

std::optional<data::AugmentList> augment_list(const Recipe& recipe) {
  if (recipe.augment == "none" || recipe.augment == "crop" || recipe.augment == "crop_flip") return std::nullopt;
  return data::AugmentList(recipe.augment);
}

void check_mixed_labels(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  const std::optional<data::AugmentList> list = augment_list(recipe);
  if (!list || !list->mixes()) return;
  check_recipe(job.task.classifies_samples(), "augment = ", recipe.augment,
               ": MixUp and CutMix need one class per sample, got loss = ", recipe.loss,
               ". Remove them from the list.");
  check_recipe(recipe.teacher.empty(), "augment = ", recipe.augment,
               ": MixUp and CutMix do not work with a teacher, got teacher = ", recipe.teacher,
               ". Remove them from the list, or leave teacher empty.");
  check_recipe(
      !recipe.sample_stats, "augment = ", recipe.augment,
      ": sample_stats needs one class per sample, but MixUp and CutMix mix the classes. Set sample_stats: false.");
}

void check_input_keys(const Recipe& recipe, InputKind input) {
  const bool scales = input == InputKind::image || input == InputKind::arrays;
  check_recipe(input == InputKind::image || (recipe.augment == "none" && (scales || recipe.image_size == 0)),
               "the model \"", recipe.model,
               "\" does not read images. Set augment: none and image_size: 0, got augment = ", recipe.augment,
               " and image_size = ", recipe.image_size, ".");
  check_recipe(input == InputKind::tokens || recipe.tokenizer.empty(), "the model \"", recipe.model,
               "\" does not read texts, so tokenizer must be empty, got ", recipe.tokenizer, ".");
}

int64_t image_channels(const ResolvedJob& job) {
  const data::DatasetInfo info = job.info();
  if (info.image_size.size() == 3) return info.image_size[2];
  if (job.data && job.data->whole.size() > 0) {
    const data::Sample first = job.data->whole.source()->read(0);
    const data::Field* picture = data::find_picture(first);
    if (picture && picture->is_array) return picture->sizes[2];  // arrays are not converted to gray or RGB
  }
  return job.model.input_shape[0] > 0 ? job.model.input_shape[0] : 3;
}

int64_t features_width(const ResolvedJob& job) {
  return job.model.inputs.empty() ? width_of(job, features_name) : 0;
}

int64_t targets_width(const ResolvedJob& job) {
  return width_of(job, "target");
}

void check_targets(const ResolvedJob& job) {
  const bool bits = job.task.loss == LossKind::bce;
  if (!bits && !job.task.per_pixel) return;
  constexpr int64_t checked = 64;
  const data::Dataset arrays = with_arrays(job.split().whole, job);
  for (int64_t i = 0; i < std::min(checked, arrays.size()); ++i) {
    const data::Sample sample = arrays.source()->read(i);
    const data::Field* target = sample.find("target");
    TORCH_CHECK_VALUE(target && (bits || target->sizes.size() == 2), "target: ", sample.where(target),
                      target ? c10::str(" has sizes ", target->sizes) : std::string(" is missing"),
                      "; expected a mask [height, width] with one class number per pixel.");
    const at::Tensor values = at::from_blob(const_cast<std::byte*>(target->bytes.data()), target->sizes, target->dtype);
    const auto most = bits ? 1.0 : static_cast<double>(job.task.outputs - 1);
    const at::Tensor numbers = values.to(at::kDouble);
    const at::Tensor ignored = target->dtype == at::kByte && !bits ? values.eq(255) : at::zeros_like(values, at::kBool);
    const bool fits = ((numbers.ge(0) & numbers.le(most)) | ignored).all().item<bool>();
    TORCH_CHECK_VALUE(fits, "target: ", sample.where(target), " has values from ", numbers.min().item<double>(), " to ",
                      numbers.max().item<double>(), "; expected ",
                      bits ? "0 or 1 for each label of loss bce" : c10::str("classes from 0 to ", most), ".",
                      bits ? "" : " Set num_classes.");
  }
}

int64_t series_width(const data::Dataset& dataset) {
  const data::Sample first = dataset.source()->read(0);
  const data::Field* series = first.find("series");
  TORCH_CHECK_VALUE(series && series->is_array && series->sizes.size() == 2,
                    "the model reads time series, so each sample needs an array \"series\" [steps, values], but ",
                    first.where(series), series ? c10::str(" has sizes ", series->sizes, ".") : " has no such array.");
  return series->sizes[1];
}

data::Dataset train_part(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  const DataSplit& split = job.split();
  data::Dataset dataset = split.whole;
  if (!recipe.subset.empty()) {
    const data::Subset chosen = data::load_subset(recipe.subset);
    dataset = dataset.subset(chosen);
    if (!split.held_out.empty()) dataset = split.whole.subset(split.trained(chosen.ids));
  } else if (!split.held_out.empty()) {
    dataset = dataset.subset(split.trained());
  }
  return ordered(augmented(dataset, job), recipe).batch(recipe.batch_size);
}

data::Dataset evaluation_batches(const ResolvedJob& job, const data::Dataset& dataset) {
  const int64_t batch = std::clamp<int64_t>(job.recipe.batch_size, 16, 256);  // about the memory of a training step
  return prepared(dataset, job).sequential().batch(batch);
}

data::Dataset prediction_batches(const ResolvedJob& job, const data::Dataset& dataset) {
  const int64_t batch = std::clamp<int64_t>(job.recipe.batch_size, 16, 256);
  const data::Dataset inputs(without_fields(dataset.source(), target_fields(job.recipe)), dataset.info());
  data::Dataset batches = prepared(inputs, job, Targets::left_out).sequential().batch(batch);
  if (job.model.input != InputKind::image || job.recipe.image_size > 0) return batches;
  // Without `image_size`, all training images have one size. Other images are scaled to it.
  const auto size = trained_image_size(job);
  return size ? batches.resize((*size)[0], (*size)[1]) : batches;
}

std::optional<data::Dataset> held_out_part(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  const DataSplit& split = job.split();
  if (!split.held_out.empty()) return split.whole.subset(split.held_out);
  if (!split.eval_split.empty()) return open_part(job, recipe.data, {.split = split.eval_split});
  if (!recipe.eval_data.empty()) return open_part(job, recipe.eval_data, {.otherwise = "test"});
  return std::nullopt;
}

std::optional<data::Dataset> eval_part(const ResolvedJob& job) {
  const std::optional<data::Dataset> held_out = held_out_part(job);
  if (!held_out) return std::nullopt;
  return evaluation_batches(job, *held_out);
}

std::string cut_texts_note(const data::Dataset& dataset) {
  const data::Source* source = dataset.source().get();
  const auto* texts = dynamic_cast<const data::TextSource*>(source);
  while (const auto* derived = texts ? nullptr : dynamic_cast<const data::Derived*>(source)) {
    source = derived->origin().get();
    texts = dynamic_cast<const data::TextSource*>(source);
  }
  const data::TextCounts counts = texts ? texts->counts() : data::TextCounts();
  if (counts.cut == 0) return "";
  return c10::str(counts.cut, " of ", counts.texts, " texts were truncated to ", texts->options().max_tokens,
                  " tokens. To keep more of each text, raise max_length.");
}

data::Dataset open_train_data(const Recipe& recipe) {
  return train_part(resolve(recipe));
}

std::optional<data::Dataset> open_eval_data(const Recipe& recipe) {
  return eval_part(resolve(recipe));
}

}  // namespace bellows::train
