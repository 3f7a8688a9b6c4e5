#include "bellows/train/data/data_split.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "bellows/data/classes.h"
#include "bellows/data/formats/table_files.h"
#include "bellows/data/picture.h"
#include "bellows/data/rename.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/train/recipe/recipe_error.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

namespace {

/// The field with the class of a sample.
/// Throws: RecipeError if it is missing, or cannot be a class
const data::Field& class_field(const data::Sample& sample, const std::string& target) {
  const data::Field* field = sample.find(target);
  check_recipe(field, "target: ", sample.where(), " has no field \"", target, "\"; it has ", sample.field_names(),
               ". With loss cross_entropy, set target to the name of one field.");
  const bool image = !field->is_array && !data::picture_name(field->bytes, "").empty();
  check_recipe(!image && (!field->is_array || c10::multiply_integers(field->sizes) == 1), "target: \"", target,
               "\" is ", image ? "an image" : c10::str("an array ", field->sizes),
               ", but the model predicts one class per sample. Choose another field, loss or model.");
  return *field;
}

/// Checks that floating-point labels are whole numbers.
/// Cost:   reads up to 1000 samples if the label of the first one is a floating-point number
/// Throws: RecipeError if a label is a fraction
void check_whole_labels(const data::Source& source, const std::string& name) {
  constexpr int64_t checked = 1000;
  data::Sample sample;
  for (int64_t i = 0; i < std::min(checked, source.size()); ++i) {
    try {
      source.read(i, sample);
    } catch (const c10::ValueError&) {  // a bad sample: training reports it
      continue;
    }
    const data::Field* label = sample.find(name);
    if (!label || !label->is_array || !c10::isFloatingType(label->dtype)) return;
    if (c10::multiply_integers(label->sizes) != 1) return;
    const std::string text = data::number_text(label->dtype, label->bytes.data());
    const std::optional<double> number = io::parse_float(text);
    check_recipe(!number || !std::isfinite(*number) || *number == std::trunc(*number), "target: \"", name,
                 "\" holds fractions such as ", text, " (", sample.where(label),
                 "), but loss cross_entropy needs class numbers. Set loss: mse to predict the number (regression), or "
                 "choose a field with integer classes.");
  }
}

// Independent of recipes, so that runs with different seeds are evaluated on the same samples.
constexpr uint64_t held_out_seed = 0x68656c64;

std::string eval_split_of(const data::DatasetInfo& info) {
  for (const char* name : {"test", "val", "valid", "validation"}) {
    const bool known = std::find(info.splits.begin(), info.splits.end(), name) != info.splits.end();
    if (known && info.split != name) return name;
  }
  return "";
}

/// Selects the evaluation data: `eval_data`, `eval_split`, a split of the folder, or a tenth of a folder without one.
void hold_out(const Recipe& recipe, DataSplit& split) {
  if (!recipe.eval_data.empty() || recipe.eval_split == "none") return;
  const int64_t size = split.whole.size();
  const auto keep = [&](int64_t count) { split.held_out = data::random_subset(size, count, held_out_seed); };
  if (const std::optional<double> share = io::parse_float(recipe.eval_split)) {
    check_recipe(*share > 0 && *share < 1 && size > 1,
                 "eval_split: expected a share between 0 and 1, and at least 2 samples, got ", recipe.eval_split,
                 " of ", size, size == 1 ? " sample." : " samples.");
    keep(std::clamp<int64_t>(std::llround(*share * static_cast<double>(size)), 1, size - 1));
    return;
  }
  if (!recipe.eval_split.empty()) {
    const std::vector<std::string>& splits = split.whole.info().splits;
    check_recipe(
        std::ranges::find(splits, recipe.eval_split) != splits.end() && recipe.eval_split != split.whole.info().split,
        "eval_split: expected a share such as 0.1, \"none\", or the name of a split other than the training split (",
        (splits.empty() ? std::string("there are no splits") : c10::Join(", ", splits)), "), got \"", recipe.eval_split,
        "\".");
    split.eval_split = recipe.eval_split;
    return;
  }
  if (!std::filesystem::is_directory(recipe.data)) return;
  split.eval_split = eval_split_of(split.whole.info());
  if (split.eval_split.empty() && size > 1) keep((size + 9) / 10);
}

}  // namespace

data::Dataset open_part(const ResolvedJob& job, const std::string& place, const data::OpenOptions& options) {
  const data::Dataset opened = data::open(place, options);
  const std::string& target = job.recipe.target;
  if (!job.task.classifies_samples() || opened.size() == 0) return opened;
  check_whole_labels(*opened.source(), target.empty() ? "label" : target);
  if (target.empty()) return opened;
  const data::Sample first = opened.source()->read(0);
  const data::Field& field = class_field(first, target);
  if (target == "label" || (target == "cls" && !first.find("label"))) return opened;
  // Other labels must not be taken for this one. Texts are read as those of "cls": class numbers, or names.
  std::vector<std::pair<std::string, std::string>> names{{target, field.is_array ? "label" : "cls"}};
  for (const char* other : {"label", "cls"}) {
    if (target != other) names.emplace_back(other, std::string("other ") + other);
  }
  return data::Dataset(data::rename_fields(opened.source(), std::move(names)), opened.info());
}

DataSplit split_data(const ResolvedJob& job) {
  const Recipe& recipe = job.recipe;
  TORCH_CHECK_VALUE(!recipe.data.empty(),
                    "the recipe has no dataset. Set `data` to a folder, a file or a pattern of shards.");
  DataSplit split{open_part(job, recipe.data, {.otherwise = "train"}), {}, ""};
  split.classes = split.whole.info().classes;
  const bool labels = job.task.classifies_samples();
  split.named_labels = labels && data::has_named_labels(*split.whole.source());
  if (labels && split.classes.empty() && (recipe.num_classes == 0 || split.named_labels))
    split.classes = data::class_names(*split.whole.source());
  hold_out(recipe, split);
  return split;
}

std::vector<int64_t> DataSplit::trained() const {
  std::vector<int64_t> all(static_cast<size_t>(whole.size()));
  std::iota(all.begin(), all.end(), 0);
  return trained(all);
}

std::vector<int64_t> DataSplit::trained(const std::vector<int64_t>& ids) const {
  std::vector<int64_t> rest;
  rest.reserve(ids.size());
  std::set_difference(ids.begin(), ids.end(), held_out.begin(), held_out.end(), std::back_inserter(rest));
  return rest;
}

data::DatasetInfo DataSplit::info() const {
  data::DatasetInfo info = whole.info();
  info.classes = classes;
  return info;
}

std::string DataSplit::held_out_note() const {
  if (held_out.empty()) return "";
  return c10::str("Held out for evaluation: ", held_out.size(), " of ", whole.size(),
                  " samples, the same ones in every run, because there is no test split. To evaluate on other samples, "
                  "set eval_data.");
}

}  // namespace bellows::train
