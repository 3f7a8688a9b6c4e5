#include "bellows/data/convert/convert_places.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/data/dataset_json.h"
#include "bellows/data/formats/new_folder.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::data {

namespace {

bool there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace

ConvertPlaces::ConvertPlaces(const OutputFormat& format, std::string destination, const std::string& split)
    : destination_(std::move(destination)), stem_(split.empty() ? "data" : split) {
  while (destination_.size() > 1 && destination_.ends_with('/')) destination_.pop_back();
  TORCH_CHECK_VALUE(!destination_.empty(), "convert: expected a destination, got an empty name.");
  TORCH_CHECK_VALUE(destination_.find("://") == std::string::npos, "convert: ", destination_,
                    " is not a local path; expected a file or a folder.");
  const bool named = format.names_file(destination_);
  TORCH_CHECK_VALUE(format.is_folder() || named || format.shards, "convert: ", format.name,
                    " data is written to one file, so the name of the destination must end in ",
                    format.suffixes.front(), " or another suffix of the format, got ", destination_, ".");
  sharded_ = !format.is_folder() && !named;
  if (sharded_) suffix_ = format.suffixes.front();
  staging_ = destination_ + (sharded_ ? "/.packing" : ".packing");
  std::replace(stem_.begin(), stem_.end(), '/', '_');
  TORCH_CHECK_VALUE(io::is_utf8(shard_name(0)), "convert: the name ", io::printable(shard_name(0)),
                    " is not UTF-8, so it cannot be stored as JSON. Choose another name.");
}

std::string ConvertPlaces::folder() const {
  return sharded_ ? destination_ : parent_of(destination_);
}

std::string ConvertPlaces::shard_name(size_t shard) const {
  if (!sharded_) return std::filesystem::path(destination_).filename();
  char number[32];
  std::snprintf(number, sizeof(number), "-%06zu", shard);
  return stem_ + number + suffix_;
}

bool ConvertPlaces::is_shard_name(const std::string& name) const {
  constexpr size_t digits = 6;
  const std::string begin = stem_ + "-";
  if (!name.starts_with(begin) || !name.ends_with(suffix_)) return false;
  if (name.size() < begin.size() + digits + suffix_.size()) return false;
  const size_t end = name.find_first_not_of("0123456789", begin.size());
  return end == name.size() - suffix_.size();
}

void ConvertPlaces::check_free() const {
  if (there(state_file())) return;
  std::error_code error;
  if (there(staging_)) {  // kill -9 may leave a folder without its first state file
    for (const auto& entry : std::filesystem::directory_iterator(staging_, error))
      TORCH_CHECK_VALUE(
          entry.path().filename().string().starts_with("packing.json.tmp-"), "convert: ", staging_,
          " exists, but it is not an unfinished conversion, because it has no packing.json. Move it to another place.");
    TORCH_CHECK_VALUE(!error, "convert: ", staging_, " already exists. Move it to another place.");
  }
  if (!there(destination_)) return;
  if (sharded_ && there(description())) {
    DatasetInfo info;
    TORCH_CHECK_VALUE(!read_dataset_json(description(), info).contains(stem_), "convert: ", destination_,
                      " has a split \"", stem_, "\" already. Choose another name, or remove the split.");
    for (const auto& entry : std::filesystem::directory_iterator(destination_, error))
      TORCH_CHECK_VALUE(!is_shard_name(entry.path().filename()), "convert: ", entry.path().string(),
                        " already exists and has the name of a shard of this split, but ", description(),
                        " does not list it. Move it to another place, or choose another folder.");
    return;
  }
  bool empty = sharded_ && std::filesystem::is_directory(destination_, error);
  for (const auto& entry : std::filesystem::directory_iterator(destination_, error))
    empty = empty && entry.path().filename().string().starts_with(".packing");
  TORCH_CHECK_VALUE(empty && !error, "convert: ", destination_,
                    " already exists and is not an unfinished conversion. Choose another name, or remove it.");
}

void ConvertPlaces::make_staging() const {
  std::error_code error;
  std::filesystem::create_directory(staging_, error);
  TORCH_CHECK(!error, "convert: cannot create the folder ", staging_, ": ", errno_message(error.value()), ".");
}

void ConvertPlaces::remove_leftovers(const std::vector<FinishedShard>& shards) const {
  // Incomplete files of the next shard, with its index; without shards, only those of the one file.
  const std::string next = shard_name(shards.size()), pages = next + ".partial";
  const std::string stem = sharded_ ? next.substr(0, next.size() - suffix_.size()) : "";
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(staging_, error)) {
    const std::string found = entry.path().filename();
    const bool unfinished = (sharded_ || shards.empty()) && found.starts_with(stem) && found != pages;
    if ((unfinished && found != "packing.json") || found.starts_with("packing.json.tmp-"))
      leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) std::filesystem::remove_all(path, error);
}

bool ConvertPlaces::has_pages(size_t shard) const {
  std::error_code none;
  const auto bytes = std::filesystem::file_size(staged(shard_name(shard)) + ".partial", none);
  return !none && bytes > 0;
}

void ConvertPlaces::put_in_place() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(staging_)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("packing.json")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {  // files that are already in place are no longer here
    const std::string to = folder() + "/" + name;
    std::error_code ignored, error;
    const bool taken =
        there(to) && !(std::filesystem::is_directory(to, ignored) && std::filesystem::is_empty(to, ignored));
    TORCH_CHECK(!taken, "convert: ", to, " was created in the meantime. The written files are complete and are in ",
                staging_, ": move ", to,
                " to another place, and run the same command again to move the files to the destination.");
    std::filesystem::rename(staged(name), to, error);
    TORCH_CHECK(!error, "convert: cannot rename ", staged(name), " to ", to, ": ", errno_message(error.value()), ".");
  }
  sync_folder(folder(), false);
}

void ConvertPlaces::remove_staging() const {
  std::error_code error;
  // Remove the state last: without it, the remaining files would not be recognized as an unfinished conversion.
  for (const auto& entry : std::filesystem::directory_iterator(staging_, error)) {
    if (entry.path() != state_file()) std::filesystem::remove_all(entry.path(), error);
  }
  std::filesystem::remove_all(staging_, error);
  TORCH_CHECK(!error, "convert: cannot remove ", staging_, ": ", errno_message(error.value()), ".");
}

}  // namespace bellows::data
