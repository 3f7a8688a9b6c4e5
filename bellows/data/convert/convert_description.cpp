#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/data/convert/convert_impl.h"
#include "bellows/data/dataset_json.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

/// "train-{000000..000003}.tar"
std::string shard_pattern(const std::string& first, const std::string& last) {
  const size_t number = first.rfind('-') + 1, end = first.find('.', number);
  if (first == last) return first;
  return first.substr(0, number) + "{" + first.substr(number, end - number) + ".." + last.substr(number, end - number) +
         "}" + first.substr(end);
}

void check_text(const char* what, const std::string& text) {
  TORCH_CHECK_VALUE(io::is_utf8(text), "convert: the ", what, " ", io::printable(text),
                    " is not UTF-8, and dataset.json cannot hold it. Rename it, or write one file.");
}

/// Where both say something, it has to be the same.
template <class T>
void check_equal(const char* what, const T& ours, const T& there, const ConvertPlaces& places) {
  constexpr size_t most_shown = 200;
  TORCH_CHECK_VALUE(ours.empty() || there.empty() || ours == there, "convert: ", places.description(),
                    " describes a data set of other ", what, ": expected those of the source, ",
                    io::printable(c10::Join(", ", ours), most_shown), ", found ",
                    io::printable(c10::Join(", ", there), most_shown), ". Choose another folder.");
}

}  // namespace

DatasetInfo written_info(const Dataset& data, const RecodeOptions& picture) {
  DatasetInfo info = data.info();
  if (picture.height > 0 && info.image_size.size() == 3) {
    info.image_size = {picture.height, picture.width, info.image_size[2]};
  } else if (picture.shorter > 0) {
    info.image_size.clear();
  }
  return info;
}

void check_description(const DatasetInfo& info, const OutputFormat& format, const ConvertPlaces& places) {
  check_text("name of the data set", info.name);
  for (const std::string& name : info.classes) check_text("class", name);
  std::error_code ignored;
  if (!std::filesystem::exists(places.description(), ignored)) return;
  DatasetInfo there;
  const auto splits = parse_dataset_json(read_text_file(places.description()), places.description(), there);
  check_equal("classes", info.classes, there.classes, places);
  check_equal("image_size", info.image_size, there.image_size, places);
  check_equal("mean", info.mean, there.mean, places);
  check_equal("std", info.std, there.std, places);
  for (const auto& [split, pattern] : splits) {
    for (const OutputFormat& other : output_formats())
      TORCH_CHECK_VALUE(other.name == format.name || !other.names_file(pattern), "convert: the split \"", split,
                        "\" in ", places.description(), " is ", other.name, ", ", io::printable(pattern), "; expected ",
                        format.name, ". Choose the same format, or another folder.");
  }
}

void write_description(const DatasetInfo& info, const ConvertPlaces& places, const std::vector<FinishedShard>& shards) {
  std::error_code ignored;
  nlohmann::ordered_json json;
  if (std::filesystem::exists(places.description(), ignored)) {
    json = nlohmann::ordered_json::parse(read_text_file(places.description()));
  } else {
    if (!info.name.empty()) json["name"] = info.name;
    if (!info.classes.empty()) json["classes"] = info.classes;
    if (!info.image_size.empty()) json["image_size"] = info.image_size;
    if (!info.mean.empty()) json["mean"] = info.mean;
    if (!info.std.empty()) json["std"] = info.std;
  }
  json["splits"][places.split()] = shard_pattern(shards.front().name, shards.back().name);
  write_text_file(places.description(), json.dump(2) + "\n");
}

}  // namespace bellows::data
