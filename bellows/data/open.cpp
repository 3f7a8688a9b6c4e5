#include <c10/util/Exception.h>

#include <algorithm>

#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/data/dataset.h"
#include "bellows/data/dataset_json.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/formats/formats.h"
#include "bellows/data/formats/mds_source.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/webdataset.h"

namespace bellows::data {

namespace {

using Kind = FolderContent::Kind;

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

/// The one that is asked for, or the only one; says so in `info`.
void choose_split(const std::string& folder, const std::string& wanted, DatasetInfo& info) {
  TORCH_CHECK_VALUE(!wanted.empty() || info.splits.size() == 1, "open: ", folder,
                    " has several splits: ", joined(info.splits), ". Choose one: open(url, {.split = \"",
                    info.splits.back(), "\"}).");
  info.split = wanted.empty() ? info.splits.front() : wanted;
  const bool known = std::find(info.splits.begin(), info.splits.end(), info.split) != info.splits.end();
  TORCH_CHECK_VALUE(known, "open: ", folder, " has no split \"", info.split, "\".",
                    did_you_mean(info.split, info.splits), " It has: ", joined(info.splits), ".");
}

Dataset open_split(const std::string& folder, const Splits& splits, const std::string& wanted, DatasetInfo info) {
  for (const auto& [name, files] : splits) info.splits.push_back(name);
  choose_split(folder, wanted, info);
  SourcePtr source = open_files(splits.at(info.split));
  return Dataset(std::move(source), std::move(info));
}

/// What is directly in a folder, one split.
Dataset open_content(const std::string& folder, const std::string& split, DatasetInfo info) {
  const FolderContent content = examine_folder(folder);
  if (content.kind == Kind::files) {
    const Splits splits = splits_by_name(content);
    if (!info.split.empty() && splits.size() == 1) return Dataset(open_files(content.files), std::move(info));
    return open_split(folder, splits, split, std::move(info));
  }
  if (info.splits.empty()) {
    TORCH_CHECK_VALUE(split.empty(), "open: ", folder, " has no splits, but \"", split, "\" was asked for.");
  }
  if (content.kind == Kind::mds) return Dataset(open_mds(folder), std::move(info));
  info.classes = image_folder_classes(folder);
  return Dataset(open_image_folder(folder), std::move(info));
}

Dataset open_folder(const std::string& folder, const std::string& split) {
  DatasetInfo info;
  const std::string description = (std::filesystem::path(folder) / "dataset.json").string();
  std::error_code ignored;
  if (std::filesystem::exists(description, ignored)) {
    const Splits splits = read_dataset_json(description, info);
    if (!splits.empty()) return open_split(folder, splits, split, std::move(info));
    return open_content(folder, split, std::move(info));
  }
  info.splits = split_folders(folder);
  if (info.splits.empty()) return open_content(folder, split, std::move(info));
  choose_split(folder, split, info);
  const std::string chosen = (std::filesystem::path(folder) / info.split).string();
  return open_content(chosen, "", std::move(info));
}

}  // namespace

Dataset open(const std::string& url, const OpenOptions& options) {
  TORCH_CHECK_VALUE(!url.empty(), "open: expected a folder, a file or a pattern of files, got an empty name.");
  TORCH_CHECK_VALUE(url.find("://") == std::string::npos || io::is_url(url), "open: ", url,
                    " is no local path, and only http:// and https:// are read from the network.");
  const ShardFiles::CacheScope scope({.folder = options.cache_folder, .limit_bytes = options.cache_bytes});
  std::error_code ignored;
  if (std::filesystem::is_directory(url, ignored)) return open_folder(url, options.split);
  TORCH_CHECK_VALUE(options.split.empty(), "open: a split can be chosen where `url` is a folder; ", io::public_url(url),
                    " is not. Name the shards of the split instead.");
  if (io::is_url(url) && url.ends_with('/')) return Dataset(open_mds(url.substr(0, url.size() - 1)));
  return open_shards(expand_shards(url));
}

Dataset open_shards(const std::vector<std::string>& shards) {
  return Dataset(open_files(shards));
}

}  // namespace bellows::data
