#include <algorithm>
#include <limits>

#include "bellows/core/device.h"
#include "bellows/core/log.h"
#include "bellows/data/order/buckets.h"
#include "bellows/data/order/labels.h"
#include "bellows/data/order/packing.h"
#include "bellows/data/text/text_source.h"
#include "bellows/train/job_data_impl.h"

namespace bellows::train {

namespace {

using models::InputKind;

data::Dataset prepared_images(const data::Dataset& dataset, const Recipe& recipe, const data::DatasetInfo& info) {
  data::Dataset images = dataset.require({"image", "label"})
                             .decode(input_width(recipe, models::model_entry(recipe.model), info) == 1 ? "gray" : "rgb")
                             .channels_last(recipe.channels_last)
                             .cache(recipe.cache_mb << 20);
  if (recipe.image_size > 0) images = images.resize(recipe.image_size, recipe.image_size);
  return info.mean.empty() ? images : images.normalize(info.mean, info.std);
}

/// Params: most_tokens – 0: texts are not cut
std::shared_ptr<const data::TextSource> texts_of(const data::Dataset& dataset, const Recipe& recipe,
                                                 const data::DatasetInfo& info, int64_t most_tokens) {
  const models::ModelEntry entry = models::model_entry(recipe.model);
  data::TextOptions options{.field = recipe.text_field,
                            .most_tokens = most_tokens,
                            .vocabulary = input_width(recipe, entry, info),
                            .labels = entry.output == models::OutputKind::sample,
                            .classes = info.classes};
  if (!recipe.tokenizer.empty()) options.tokenizer = data::open_tokenizer(recipe.tokenizer);
  return std::make_shared<const data::TextSource>(dataset.source(), std::move(options));
}

data::Dataset prepared_texts(const data::Dataset& dataset, const Recipe& recipe, const data::DatasetInfo& info) {
  const int64_t longest = longest_text(recipe, models::model_entry(recipe.model));
  const data::Dataset texts(texts_of(dataset, recipe, info, longest), dataset.info());
  return texts.require({"tokens", "label"}).pad("tokens");
}

/// Rows of several texts, as language models read them. Each text is tokenized once to learn its length.
data::Dataset packed_texts(const data::Dataset& dataset, const Recipe& recipe, const data::DatasetInfo& info) {
  const auto texts = texts_of(dataset, recipe, info, 0);
  const std::vector<int64_t> lengths =
      recipe.bad_samples == "skip" ? texts->lengths() : data::read_lengths(*texts, "tokens");
  if (const auto bad = std::ranges::count(lengths, 0); bad > 0)
    log_warn("texts: ", bad, " of ", lengths.size(), " cannot be used, and are left out (bad_samples: skip).");
  const int64_t row_length = longest_text(recipe, models::model_entry(recipe.model));
  TORCH_CHECK_VALUE(row_length != 1, "make_job: \"", recipe.model,
                    "\" learns which token follows another, expected a sequence_length of 2 at least, got 1.");
  const data::Packing packing = data::pack_rows(
      lengths, {.row_length = row_length > 0 ? row_length : 128, .seed = static_cast<uint64_t>(recipe.seed)});
  return data::Dataset(data::packed(texts, "tokens", packing), dataset.info()).require({"tokens", "segment_ids"});
}

data::Dataset prepared_series(const data::Dataset& dataset) {
  return dataset.require({"series", "label"}).pad("series", std::numeric_limits<double>::quiet_NaN());
}

/// What training and held-out data have in common. Held-out data follow the training data's description.
data::Dataset prepared(const data::Dataset& dataset, const Recipe& recipe, const data::DatasetInfo& info) {
  const models::ModelEntry entry = models::model_entry(recipe.model);
  const InputKind input = entry.input;
  TORCH_CHECK_VALUE(input == InputKind::image || (recipe.augment == "none" && recipe.image_size == 0), "make_job: \"",
                    recipe.model, "\" reads no pictures, expected augment none and image_size 0, got ", recipe.augment,
                    " and ", recipe.image_size, ".");
  TORCH_CHECK_VALUE(input == InputKind::tokens || recipe.tokenizer.empty(), "make_job: \"", recipe.model,
                    "\" reads no texts, expected tokenizer to be empty, got ", recipe.tokenizer, ".");
  const bool packs = entry.output == models::OutputKind::token;
  const data::Dataset known = input == InputKind::image    ? prepared_images(dataset, recipe, info)
                              : input == InputKind::series ? prepared_series(dataset)
                              : packs                      ? packed_texts(dataset, recipe, info)
                                                           : prepared_texts(dataset, recipe, info);
  return known.num_classes(classes_of(recipe, info))
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

int64_t classes_of(const Recipe& recipe, const data::DatasetInfo& info) {
  return recipe.num_classes > 0 ? recipe.num_classes : static_cast<int64_t>(info.classes.size());
}

int64_t input_width(const Recipe& recipe, const models::ModelEntry& entry, const data::DatasetInfo& info) {
  const int64_t meant = entry.input_shape[0];
  if (entry.input == InputKind::image && info.image_size.size() == 3) return info.image_size[2];
  if (entry.input != InputKind::tokens) return meant > 0 ? meant : 3;
  if (!recipe.tokenizer.empty()) return data::open_tokenizer(recipe.tokenizer).vocabulary;
  TORCH_CHECK_VALUE(meant > 0, "make_job: \"", recipe.model,
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
  return ordered(augmented(prepared(dataset, recipe, split.info()), recipe), recipe).batch(recipe.batch_size);
}

std::optional<data::Dataset> eval_part(const Recipe& recipe, const DataSplit& split, const data::DatasetInfo& info) {
  const bool images = models::model_entry(recipe.model).input == InputKind::image;
  const int64_t eval_batch = images ? 256 : std::min<int64_t>(256, std::max<int64_t>(recipe.batch_size, 16));
  std::optional<data::Dataset> dataset;
  if (!recipe.eval_data.empty()) dataset = data::open(recipe.eval_data, {.otherwise = "test"});
  if (!split.eval_split.empty()) dataset = data::open(recipe.data, {.split = split.eval_split});
  if (!split.held_out.empty()) dataset = split.whole.subset(split.held_out);
  if (!dataset) return {};
  return prepared(*dataset, recipe, info).sequential().batch(eval_batch);
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

std::optional<data::Dataset> open_eval_data(const Recipe& recipe, const data::Dataset&) {
  const DataSplit split = split_data(recipe);
  return eval_part(recipe, split, split.info());
}

}  // namespace bellows::train
