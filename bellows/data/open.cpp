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
#include "bellows/data/formats/shard_pattern.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

using Kind = FolderContent::Kind;

bool has_split(const DatasetInfo& info, const std::string& name) {
  return std::find(info.splits.begin(), info.splits.end(), name) != info.splits.end();
}

/// Chooses the requested split, or the only one, and records it in `info`.
void choose_split(const std::string& folder, const OpenOptions& options, DatasetInfo& info) {
  info.split = options.split;
  if (info.split.empty() && info.splits.size() == 1) info.split = info.splits.front();
  if (info.split.empty() && has_split(info, options.otherwise)) info.split = options.otherwise;
  TORCH_CHECK_VALUE(!info.split.empty(), "open: ", folder, " has several splits",
                    options.otherwise.empty() ? "" : ", but none has the name \"" + options.otherwise + "\"", ": ",
                    c10::Join(", ", info.splits), ". Choose one with the option `split`, or name its files.");
  const bool known = has_split(info, info.split);
  TORCH_CHECK_VALUE(known, "open: ", folder, " has no split \"", info.split, "\".",
                    did_you_mean(info.split, info.splits), " The splits are: ", c10::Join(", ", info.splits), ".");
}

Dataset open_split(const std::string& folder, const Splits& splits, const OpenOptions& options, DatasetInfo info) {
  for (const auto& [name, files] : splits) info.splits.push_back(name);
  choose_split(folder, options, info);
  SourcePtr source = open_files(splits.at(info.split));
  return Dataset(std::move(source), std::move(info));
}

/// Opens the files directly in a folder, which are one split.
Dataset open_content(const std::string& folder, const OpenOptions& options, DatasetInfo info) {
  const FolderContent content = examine_folder(folder);
  if (content.kind == Kind::files) {
    const Splits splits = splits_by_name(content);
    if (!info.split.empty() && splits.size() == 1) return Dataset(open_files(content.files), std::move(info));
    return open_split(folder, splits, options, std::move(info));
  }
  if (info.splits.empty()) {
    TORCH_CHECK_VALUE(options.split.empty(), "open: ", folder, " has no splits, but the split \"", options.split,
                      "\" was requested.");
  }
  if (content.kind == Kind::mds) return Dataset(open_mds(folder), std::move(info));
  info.classes = image_folder_classes(folder);
  return Dataset(open_image_folder(folder), std::move(info));
}

Dataset open_folder(const std::string& folder, const OpenOptions& options) {
  DatasetInfo info;
  const std::string description = (std::filesystem::path(folder) / "dataset.json").string();
  std::error_code ignored;
  if (std::filesystem::exists(description, ignored)) {
    const Splits splits = read_dataset_json(description, info);
    if (!splits.empty()) return open_split(folder, splits, options, std::move(info));
    return open_content(folder, options, std::move(info));
  }
  info.splits = split_folders(folder);
  if (info.splits.empty()) return open_content(folder, options, std::move(info));
  choose_split(folder, options, info);
  const std::string chosen = (std::filesystem::path(folder) / info.split).string();
  return open_content(chosen, {}, std::move(info));
}

}  // namespace

Splits read_dataset_json(const std::string& path, DatasetInfo& info) {
  const MappedFile file(path);
  Splits splits;
  for (const auto& [name, pattern] : parse_dataset_json(io::as_text(file.bytes()), path, info))
    splits[name] = expand_shards(pattern, std::filesystem::path(path).parent_path().string());
  return splits;
}

Dataset open(const std::string& url, const OpenOptions& options) {
  TORCH_CHECK_VALUE(!url.empty(), "open: expected a folder, a file or a pattern of files, got an empty name.");
  TORCH_CHECK_VALUE(url.find("://") == std::string::npos || io::is_url(url), "open: ", url,
                    " is not a local path; only http:// and https:// URLs are supported.");
  const ShardFiles::CacheScope scope({.folder = options.cache_folder, .limit_bytes = options.cache_bytes});
  std::error_code ignored;
  if (std::filesystem::is_directory(url, ignored)) return open_folder(url, options);
  TORCH_CHECK_VALUE(options.split.empty(), "open: a split can only be chosen for a folder, but ", io::public_url(url),
                    " is not a folder. Name the shards of the split instead.");
  if (io::is_url(url) && url.ends_with('/')) return Dataset(open_mds(url.substr(0, url.size() - 1)));
  return open_shards(expand_shards(url));
}

Dataset open_shards(const std::vector<std::string>& shards) {
  return Dataset(open_files(shards));
}

}  // namespace bellows::data
