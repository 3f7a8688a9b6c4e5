#include "bellows/train/inference/prediction_inputs.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/order/mix.h"
#include "bellows/data/rename.h"
#include "bellows/data/text/text_lines.h"
#include "bellows/data/text/text_source.h"
#include "bellows/data/without_fields.h"
#include "bellows/train/data/data_assembly.h"

namespace bellows::train {

namespace {

namespace fs = std::filesystem;
using Part = PredictionInputs::Part;

/// Collects the parts and their sources. Consecutive images become one source, because their number may be large.
class FileParts {
 public:
  void add_image(const std::string& path) {
    images_.push_back(path);
    parts_.push_back({.file = path, .error = ""});
  }
  void add_rows(const std::string& path, data::SourcePtr source) {
    parts_.push_back({.file = path, .error = "", .rows = true, .size = source->size()});
    sources_.push_back(std::move(source));
  }
  void add_error(const std::string& path, const std::string& error) {
    parts_.push_back({.file = path, .error = error});
  }

  PredictionInputs finish() {
    if (!images_.empty()) sources_.push_back(data::open_image_files(std::move(images_)));
    PredictionInputs inputs{.parts = std::move(parts_), .samples = std::nullopt};
    if (!sources_.empty()) inputs.samples.emplace(data::concat(std::move(sources_)));
    return inputs;
  }

 private:
  std::vector<Part> parts_;
  std::vector<std::string> images_;
  std::vector<data::SourcePtr> sources_;
};

bool is_folder(const std::string& path) {
  std::error_code unreadable;
  return fs::is_directory(path, unreadable);
}

/// Whether the file is a table or another dataset, by its suffix. Everything else is lines of text.
bool is_text_file(const std::string& path) {
  std::error_code unreadable;
  if (!fs::is_regular_file(path, unreadable)) return true;  // a pipe
  const std::string suffix = lower_case(fs::path(path).extension().string());
  for (const char* table : {".csv", ".jsonl", ".tar", ".npy", ".npz", ".safetensors", ".pack", ".beton", ".tfrecord"}) {
    if (suffix == table) return false;
  }
  return true;
}

/// The field that holds the texts of a table, or "" if it is not clear. Errors then name the sample.
std::string text_field_of(const data::SourcePtr& table, const Recipe& recipe) {
  const data::SourcePtr inputs = data::without_fields(table, split_list(recipe.target));
  try {
    return data::find_text_field(inputs->read(0), /*tokens=*/false);
  } catch (const c10::ValueError&) {
    return "";
  }
}

/// Opens a file with texts. The texts have the same field name in all files.
data::SourcePtr open_texts(const std::string& path, const Recipe& recipe) {
  const std::string name = recipe.text_field.empty() ? "txt" : recipe.text_field;
  if (is_text_file(path)) return data::rename_fields(data::open_text_lines(path), {{"txt", name}});
  const data::SourcePtr table = data::open(path).source();
  const std::string field = recipe.text_field.empty() && !recipe.tokenizer.empty() ? text_field_of(table, recipe) : "";
  return field.empty() ? table : data::rename_fields(table, {{field, name}});
}

void add_images(FileParts& parts, const std::string& path) {
  if (!is_folder(path)) return parts.add_image(path);
  const std::vector<std::string> files = data::list_image_files(path);
  TORCH_CHECK_VALUE(!files.empty(), path, " is a folder without .jpg, .jpeg or .png files.");
  for (const std::string& file : files) parts.add_image(file);
}

void add_file(FileParts& parts, const std::string& path, const ResolvedJob& job) {
  const models::InputKind input = job.model.input;
  if (input == models::InputKind::image) return add_images(parts, path);
  std::error_code unreadable;
  TORCH_CHECK_VALUE(fs::exists(path, unreadable), "there is no file ", path, ".");
  TORCH_CHECK_VALUE(!is_folder(path), path,
                    " is a folder, but the model does not read images. Expected a file. To read "
                    "a folder with a dataset, set `data`.");
  const bool texts = input == models::InputKind::tokens;
  parts.add_rows(path, texts ? open_texts(path, job.recipe) : data::open(path).source());
}

}  // namespace

int64_t PredictionInputs::size() const {
  int64_t total = 0;
  for (const Part& part : parts) total += part.size;
  return total;
}

PredictionInputs open_prediction_files(const TrainedModel& trained, const std::vector<std::string>& files) {
  TORCH_CHECK_VALUE(!files.empty(), "predict: expected at least one file, got none.");
  FileParts parts;
  for (const std::string& path : files) {
    try {
      add_file(parts, path, trained.job);
    } catch (const c10::ValueError& error) {
      parts.add_error(path, user_message(error));
    }
  }
  return parts.finish();
}

PredictionInputs open_prediction_data(const TrainedModel& trained, const std::string& data, const std::string& split) {
  const ResolvedJob& job = trained.job;
  const std::string& place = data.empty() ? job.recipe.data : data;
  TORCH_CHECK_VALUE(!place.empty(), "predict: the recipe has no dataset. Set `data`, or name files.");
  PredictionInputs inputs;
  if (!data.empty() || !split.empty()) {
    inputs.samples = data::open(place, {.split = split, .otherwise = "test"});
  } else {
    inputs.samples = held_out_part(job);
    TORCH_CHECK_VALUE(inputs.samples, "predict: the recipe has no held-out data. Set `split` or `data`.");
  }
  Part part{.file = "", .error = "", .rows = true, .size = inputs.samples->size()};
  const std::vector<int64_t>& held_out = job.data ? job.split().held_out : part.ids;
  if (data.empty() && split.empty()) part.ids = held_out;
  inputs.parts = {std::move(part)};
  return inputs;
}

}  // namespace bellows::train
