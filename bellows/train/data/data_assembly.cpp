#include <algorithm>
#include <limits>

#include "bellows/core/device.h"
#include "bellows/core/log.h"
#include "bellows/data/classes.h"
#include "bellows/data/order/buckets.h"
#include "bellows/data/order/labels.h"
#include "bellows/data/order/packing.h"
#include "bellows/data/text/text_source.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

using models::InputKind;

data::Dataset prepared_images(const data::Dataset& dataset, const Recipe& recipe, const DataSplit& split) {
  const data::DatasetInfo info = split.info();
  data::Dataset images = dataset.require({"image", "label"})
                             .decode(image_channels(models::model_entry(recipe.model), info) == 1 ? "gray" : "rgb")
                             .channels_last(recipe.channels_last)
                             .cache(recipe.cache_mb << 20);
  if (recipe.image_size > 0) images = images.resize(recipe.image_size, recipe.image_size);
  return info.mean.empty() ? images : images.normalize(info.mean, info.std);
}

/// Params: most_tokens – 0: texts are not cut
std::shared_ptr<const data::TextSource> texts_of(const data::Dataset& dataset, const Recipe& recipe,
                                                 const DataSplit& split, int64_t most_tokens) {
  const models::ModelEntry entry = models::model_entry(recipe.model);
  return std::make_shared<const data::TextSource>(
      dataset.source(), data::TextOptions{.field = recipe.text_field,
                                          .tokenizer = split.tokenizer,
                                          .most_tokens = most_tokens,
                                          .vocabulary = input_width(entry, split.info(), split.tokenizer),
                                          .labels = entry.output == models::OutputKind::sample});
}

data::Dataset prepared_texts(const data::Dataset& dataset, const Recipe& recipe, const DataSplit& split) {
  TORCH_CHECK_VALUE(!split.tokenizer || split.tokenizer->pads, "make_job: \"", recipe.model,
                    "\" takes token 0 for padding, and it is a piece of text in ", split.tokenizer->description,
                    ". Give it the tokenizer that it was made with, or bytes.");
  const int64_t longest = longest_text(recipe, models::model_entry(recipe.model));
  const data::Dataset texts(texts_of(dataset, recipe, split, longest), dataset.info());
  return texts.require({"tokens", "label"}).pad("tokens");
}

/// Rows of several texts, as language models read them. Each text is tokenized once to learn its length.
data::Dataset packed_texts(const data::Dataset& dataset, const Recipe& recipe, const DataSplit& split) {
  const auto texts = texts_of(dataset, recipe, split, 0);
  const std::vector<int64_t> lengths =
      recipe.bad_samples == "skip" ? texts->lengths() : data::read_lengths(*texts, "tokens");
  if (const auto bad = std::ranges::count(lengths, 0); bad > 0)
    log_warn("texts: ", bad, " of ", lengths.size(), " cannot be used, and are left out (bad_samples: skip).");
  const int64_t row_length = longest_text(recipe, models::model_entry(recipe.model));
  check_recipe(row_length != 1, "make_job: \"", recipe.model,
               "\" learns which token follows another, expected a sequence_length of 2 at least, got 1.");
  const data::Packing packing = data::pack_rows(
      lengths, {.row_length = row_length > 0 ? row_length : 128, .seed = static_cast<uint64_t>(recipe.seed)});
  return data::Dataset(data::packed(texts, "tokens", packing), dataset.info()).require({"tokens", "segment_ids"});
}

data::Dataset prepared_series(const data::Dataset& dataset) {
  return dataset.require({"series", "label"}).pad("series", std::numeric_limits<double>::quiet_NaN());
}

/// Numbers for labels that are names, by the training data's classes.
data::Dataset with_numbered_labels(const data::Dataset& dataset, const DataSplit& split) {
  if (!split.named_labels && !data::has_named_labels(*dataset.source())) return dataset;
  return data::Dataset(data::number_labels(dataset.source(), split.classes), dataset.info());
}

/// What training and held-out data have in common. Held-out data follow the training data's description.
data::Dataset prepared(const data::Dataset& dataset, const Recipe& recipe, const DataSplit& split) {
  const models::ModelEntry entry = models::model_entry(recipe.model);
  const InputKind input = entry.input;
  check_input_keys(recipe, input);
  const bool packs = entry.output == models::OutputKind::token;
  const data::Dataset labelled = packs ? dataset : with_numbered_labels(dataset, split);
  const data::Dataset known = input == InputKind::image    ? prepared_images(labelled, recipe, split)
                              : input == InputKind::series ? prepared_series(labelled)
                              : packs                      ? packed_texts(labelled, recipe, split)
                                                           : prepared_texts(labelled, recipe, split);
  return known.num_classes(classes_of(recipe, split.info()))
      .threads(recipe.loader_threads)
      .prefetch(recipe.prefetch)
      .to(parse_device(recipe.device))
      .on_bad_sample(recipe.bad_samples == "skip" ? data::OnBadSample::skip : data::OnBadSample::fail);
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

void check_input_keys(const Recipe& recipe, InputKind input) {
  check_recipe(input == InputKind::image || (recipe.augment == "none" && recipe.image_size == 0), "make_job: \"",
               recipe.model, "\" reads no pictures, expected augment none and image_size 0, got ", recipe.augment,
               " and ", recipe.image_size, ".");
  check_recipe(input == InputKind::tokens || recipe.tokenizer.empty(), "make_job: \"", recipe.model,
               "\" reads no texts, expected tokenizer to be empty, got ", recipe.tokenizer, ".");
}

int64_t classes_of(const Recipe& recipe, const data::DatasetInfo& info) {
  return recipe.num_classes > 0 ? recipe.num_classes : static_cast<int64_t>(info.classes.size());
}

std::optional<data::TextTokenizer> tokenizer_of(const Recipe& recipe, const models::ModelEntry& entry) {
  if (recipe.tokenizer.empty() || entry.input != InputKind::tokens) return {};
  return data::open_tokenizer(recipe.tokenizer);
}

int64_t image_channels(const models::ModelEntry& entry, const data::DatasetInfo& info) {
  if (info.image_size.size() == 3) return info.image_size[2];
  return entry.input_shape[0] > 0 ? entry.input_shape[0] : 3;
}

int64_t input_width(const models::ModelEntry& entry, const data::DatasetInfo& info,
                    const std::optional<data::TextTokenizer>& tokenizer) {
  const int64_t meant = entry.input_shape[0];
  if (entry.input == InputKind::image) return image_channels(entry, info);
  if (entry.input != InputKind::tokens) return meant > 0 ? meant : 3;
  if (tokenizer) return tokenizer->vocabulary;
  TORCH_CHECK_VALUE(meant > 0, "make_job: \"", entry.name,
                    "\" does not say how many words it knows. Set tokenizer, or give its ModelNotes an input_shape.");
  return meant;
}

int64_t series_width(const data::Dataset& dataset) {
  const data::Sample first = dataset.source()->read(0);
  const data::Field* series = first.find("series");
  TORCH_CHECK_VALUE(series && series->is_array && series->sizes.size() == 2,
                    "make_job: expected series, an array \"series\" [steps, values] in each sample: ",
                    first.where(series), series ? c10::str(" has sizes ", series->sizes, ".") : " has none.");
  return series->sizes[1];
}

int64_t longest_text(const Recipe& recipe, const models::ModelEntry& entry) {
  return recipe.sequence_length > 0 ? recipe.sequence_length : entry.input_shape[1];
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
  return ordered(augmented(prepared(dataset, recipe, split), recipe), recipe).batch(recipe.batch_size);
}

std::optional<data::Dataset> eval_part(const Recipe& recipe, const DataSplit& split) {
  const int64_t eval_batch = std::clamp<int64_t>(recipe.batch_size, 16, 256);  // no more memory than a step, about
  std::optional<data::Dataset> dataset;
  if (!recipe.eval_data.empty()) dataset = data::open(recipe.eval_data, {.otherwise = "test"});
  if (!split.eval_split.empty()) dataset = data::open(recipe.data, {.split = split.eval_split});
  if (!split.held_out.empty()) dataset = split.whole.subset(split.held_out);
  if (!dataset) return {};
  return prepared(*dataset, recipe, split).sequential().batch(eval_batch);
}

std::string cut_texts_note(const data::Dataset& dataset) {
  const auto* texts = dynamic_cast<const data::TextSource*>(dataset.source().get());
  const data::TextCounts counts = texts ? texts->counts() : data::TextCounts();
  if (counts.cut == 0) return "";
  return c10::str("Cut behind ", texts->options().most_tokens, " tokens: ", counts.cut, " of ", counts.texts,
                  " texts. To keep more of them, set sequence_length.");
}

data::Dataset open_train_data(const Recipe& recipe) {
  return train_part(recipe, split_data(recipe));
}

std::optional<data::Dataset> open_eval_data(const Recipe& recipe) {
  return eval_part(recipe, split_data(recipe));
}

}  // namespace bellows::train
