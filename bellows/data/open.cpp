#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/data/dataset.h"
#include "bellows/data/webdataset.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

using Json = nlohmann::json;
using Splits = std::map<std::string, std::vector<std::string>>;  // shards by split

/// A shard's name without its suffix, which tells tar and what it may be compressed by; "" when it is no shard.
std::string shard_stem(const std::string& file) {
  for (const std::string_view suffix : {".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4"}) {
    if (file.ends_with(suffix)) return file.substr(0, file.size() - suffix.size());
  }
  return "";
}

/// "train" of "train-0003"; the whole stem when no number ends it.
std::string split_of_stem(std::string stem) {
  const size_t digits = stem.find_last_not_of("0123456789");
  if (digits != std::string::npos && digits + 1 < stem.size()) stem.erase(digits + 1);
  while (stem.size() > 1 && (stem.back() == '-' || stem.back() == '_')) stem.pop_back();
  return stem;
}

/// What has a shard's name and cannot be read is kept: opening it says what is wrong.
Splits splits_by_name(const std::filesystem::path& folder) {
  Splits splits;
  std::error_code error, ignored;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string stem = shard_stem(entry->path().filename().string());
    if (!stem.empty() && !entry->is_directory(ignored)) splits[split_of_stem(stem)].push_back(entry->path().string());
  }
  TORCH_CHECK_VALUE(!error, "open: cannot list the folder ", folder.string(), ": ", errno_message(error.value()), ".");
  for (auto& [name, shards] : splits) std::sort(shards.begin(), shards.end());
  return splits;
}

/// dataset.json while it is read.
class Description {
 public:
  explicit Description(const std::filesystem::path& path) : path_(path.string()) {
    const MappedFile file(path_);
    const std::string_view text = io::as_text(file.bytes());
    try {
      document_ = Json::parse(text);
    } catch (const Json::parse_error& error) {
      const size_t at = error.byte > 0 ? std::min(error.byte - 1, text.size()) : 0;
      TORCH_CHECK_VALUE(false, "open: ", path_, ": expected JSON, found a mistake at byte ", at,
                        at < text.size() ? ": " + io::printable(text.substr(at), 20) : ": the file ends there", ".");
    } catch (const Json::out_of_range&) {
      TORCH_CHECK_VALUE(false, "open: ", path_, ": expected JSON, found a number that is too large for a double.");
    }
    TORCH_CHECK_VALUE(document_.is_object(), "open: ", path_, ": expected a JSON object that describes a data set, ",
                      "found ", shown(document_), ".");
  }

  std::string text(const char* key) const {
    return get<std::string>(key, "a text", [](const Json& value) { return value.is_string(); });
  }
  std::vector<std::string> texts(const char* key) const {
    return list<std::string>(key, "a list of texts", [](const Json& value) { return value.is_string(); });
  }
  std::vector<int64_t> sizes(const char* key) const {
    return list<int64_t>(key, "a list of whole numbers", [](const Json& value) {
      return value.is_number_integer() && value >= 0 && value <= INT64_MAX;
    });
  }
  std::vector<double> numbers(const char* key) const {
    return list<double>(key, "a list of numbers", [](const Json& value) { return value.is_number(); });
  }
  std::map<std::string, std::string> texts_by_name(const char* key) const {
    return get<std::map<std::string, std::string>>(key, "an object of texts", [](const Json& value) {
      return value.is_object() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
    });
  }

 private:
  static std::string shown(const Json& value) { return io::printable(value.dump(), 60); }

  /// T() where the key is missing.
  template <class T, class Fits>
  T get(const char* key, const char* expected, const Fits& fits) const {
    const auto found = document_.find(key);
    if (found == document_.end()) return {};
    TORCH_CHECK_VALUE(fits(*found), "open: ", path_, ": expected \"", key, "\" to be ", expected, ", found ",
                      shown(*found), ".");
    return found->get<T>();
  }
  template <class T, class Fits>
  std::vector<T> list(const char* key, const char* expected, const Fits& fits) const {
    return get<std::vector<T>>(key, expected, [&](const Json& value) {
      return value.is_array() && std::all_of(value.begin(), value.end(), fits);
    });
  }

  std::string path_;
  Json document_;
};

/// Fills `info` from a dataset.json and returns the splits it names.
Splits read_metadata(const std::filesystem::path& path, DatasetInfo& info) {
  const Description description(path);
  info.name = description.text("name");
  info.classes = description.texts("classes");
  info.image_size = description.sizes("image_size");
  info.mean = description.numbers("mean");
  info.std = description.numbers("std");
  Splits splits;
  for (const auto& [name, pattern] : description.texts_by_name("splits"))
    splits[name] = expand_shards(pattern, path.parent_path().string());
  return splits;
}

Dataset open_folder(const std::filesystem::path& folder, const OpenOptions& options) {
  DatasetInfo info;
  const auto metadata = folder / "dataset.json";
  std::error_code ignored;
  Splits splits = std::filesystem::exists(metadata, ignored) ? read_metadata(metadata, info) : Splits();
  if (splits.empty()) splits = splits_by_name(folder);
  TORCH_CHECK_VALUE(!splits.empty(), "open: found no shards in the folder ", folder.string(),
                    ": their names end in .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz, .tar.zst or .tar.lz4.");
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
  std::error_code ignored;
  if (std::filesystem::is_directory(url, ignored)) return open_folder(url, options);
  TORCH_CHECK_VALUE(options.split.empty(), "open: a split can be chosen where `url` is a folder; ", url,
                    " is not. Name the shards of the split instead.");
  return open_shards(expand_shards(url));
}

Dataset open_shards(const std::vector<std::string>& shards) {
  return Dataset(open_webdataset(shards));
}

}  // namespace bellows::data
