#include "bellows/train/data/data_split.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "bellows/data/classes.h"
#include "bellows/train/data/data_assembly.h"

namespace bellows::train {

namespace {

constexpr uint64_t held_out_seed = 0x68656c64;  // of no recipe: runs with other seeds are measured on the same samples

std::string eval_split_of(const data::DatasetInfo& info) {
  for (const char* name : {"test", "val", "valid", "validation"}) {
    const bool known = std::find(info.splits.begin(), info.splits.end(), name) != info.splits.end();
    if (known && info.split != name) return name;
  }
  return "";
}

}  // namespace

DataSplit split_data(const Recipe& recipe) {
  TORCH_CHECK_VALUE(!recipe.data.empty(), "make_job: the recipe names no data. Set `data` to a folder or shards.");
  DataSplit split{data::open(recipe.data, {.otherwise = "train"}), {}, ""};
  split.classes = split.whole.info().classes;
  const models::ModelEntry entry = models::model_entry(recipe.model);
  split.tokenizer = tokenizer_of(recipe, entry);
  const bool labels = entry.output != models::OutputKind::token;
  split.named_labels = labels && data::has_named_labels(*split.whole.source());
  if (labels && split.classes.empty() && (recipe.num_classes == 0 || split.named_labels))
    split.classes = data::class_names(*split.whole.source());
  if (!recipe.eval_data.empty() || !std::filesystem::is_directory(recipe.data)) return split;
  split.eval_split = eval_split_of(split.whole.info());
  const int64_t size = split.whole.size();
  if (split.eval_split.empty() && size > 1) split.held_out = data::random_subset(size, (size + 9) / 10, held_out_seed);
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
                  " samples, the same in every run, for there is no test split (eval_data names other samples).");
}

}  // namespace bellows::train
