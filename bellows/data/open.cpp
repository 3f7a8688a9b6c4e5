#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/data/dataset.h"
#include "bellows/data/webdataset.h"

namespace bellows::data {

namespace {

using Splits = std::map<std::string, std::vector<std::string>>;  // shards by split

/// "train" of "train-0003.tar"; the whole stem when no number ends it.
std::string split_of_shard(const std::string& file) {
  std::string stem = file.substr(0, file.find(".tar"));
  const size_t digits = stem.find_last_not_of("0123456789");
  if (digits != std::string::npos && digits + 1 < stem.size()) stem.erase(digits + 1);
  while (stem.size() > 1 && (stem.back() == '-' || stem.back() == '_')) stem.pop_back();
  return stem;
}

Splits splits_by_name(const std::filesystem::path& folder) {
  Splits splits;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (entry.is_regular_file() && file.find(".tar") != std::string::npos)
      splits[split_of_shard(file)].push_back(entry.path().string());
  }
  for (auto& [name, shards] : splits) std::sort(shards.begin(), shards.end());
  return splits;
}

/// Fills `info` from a dataset.json and returns the splits it names.
Splits read_metadata(const std::filesystem::path& path, DatasetInfo& info) {
  Splits splits;
  try {
    const auto document = nlohmann::json::parse(read_text_file(path.string()));
    info.name = document.value("name", "");
    info.classes = document.value("classes", std::vector<std::string>());
    info.image_size = document.value("image_size", std::vector<int64_t>());
    info.mean = document.value("mean", std::vector<double>());
    info.std = document.value("std", std::vector<double>());
    const auto patterns = document.value("splits", nlohmann::json::object());
    for (const auto& [name, pattern] : patterns.items()) {
      splits[name] = expand_shards((path.parent_path() / pattern.get<std::string>()).string());
    }
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "open: ", path.string(), " is not a data set's description: ", error.what());
  }
  return splits;
}

Dataset open_folder(const std::filesystem::path& folder, const OpenOptions& options) {
  DatasetInfo info;
  const auto metadata = folder / "dataset.json";
  Splits splits = std::filesystem::exists(metadata) ? read_metadata(metadata, info) : Splits();
  if (splits.empty()) splits = splits_by_name(folder);
  TORCH_CHECK_VALUE(!splits.empty(), "open: found no shards (*.tar) in the folder ", folder.string(), ".");
  std::string all;
  for (const auto& [name, shards] : splits) {
    info.splits.push_back(name);
    all += (all.empty() ? "" : ", ") + name;
  }
  TORCH_CHECK_VALUE(!options.split.empty() || splits.size() == 1, "open: ", folder.string(),
                    " has several splits: ", all, ". Choose one: open(url, {.split = \"", splits.rbegin()->first,
                    "\"}).");
  info.split = options.split.empty() ? splits.begin()->first : options.split;
  const auto chosen = splits.find(info.split);
  TORCH_CHECK_VALUE(chosen != splits.end(), "open: ", folder.string(), " has no split \"", info.split, "\".",
                    did_you_mean(info.split, info.splits), " It has: ", all, ".");
  return Dataset(open_webdataset(chosen->second), std::move(info));
}

}  // namespace

Dataset open(const std::string& url, const OpenOptions& options) {
  TORCH_CHECK_VALUE(!url.empty(), "open: expected a folder, a shard or a pattern of shards, got an empty name.");
  TORCH_CHECK_VALUE(url.find("://") == std::string::npos, "open: ", url,
                    " is no local path; expected a folder, a shard or a pattern of shards.");
  if (std::filesystem::is_directory(url)) return open_folder(url, options);
  TORCH_CHECK_VALUE(options.split.empty(), "open: a split can be chosen where `url` is a folder; ", url,
                    " is not. Name the shards of the split instead.");
  return open_shards(expand_shards(url));
}

Dataset open_shards(const std::vector<std::string>& shards) {
  return Dataset(open_webdataset(shards));
}

}  // namespace bellows::data
