#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/data/convert/convert_impl.h"
#include "bellows/data/dataset_json.h"
#include "bellows/data/formats/recordio_source.h"
#include "bellows/data/formats/tfrecord_source.h"

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

/// `found` is called as AtomicFile and NewFolder call what is to become `name`.
bool is_temporary_of(const std::string& name, const std::string& found) {
  constexpr std::string_view mark = ".tmp-";
  constexpr size_t random_letters = 6;
  return found.size() == name.size() + mark.size() + random_letters && found.starts_with(name) &&
         found.compare(name.size(), mark.size(), mark) == 0;
}

}  // namespace

ConvertPlaces::ConvertPlaces(const OutputFormat& format, std::string destination, const std::string& split)
    : destination_(std::move(destination)), stem_(split.empty() ? "data" : split) {
  while (destination_.size() > 1 && destination_.ends_with('/')) destination_.pop_back();
  TORCH_CHECK_VALUE(!destination_.empty(), "convert: expected a destination, got an empty name.");
  TORCH_CHECK_VALUE(destination_.find("://") == std::string::npos, "convert: ", destination_,
                    " is no local path; expected a file or a folder.");
  const bool named =
      std::ranges::any_of(format.suffixes, [&](const auto& suffix) { return destination_.ends_with(suffix); });
  TORCH_CHECK_VALUE(format.is_folder() || named || format.shards, "convert: ", format.name,
                    " are one file; expected a ", "destination whose name ends in ", format.suffixes.front(),
                    " or the like, got ", destination_, ".");
  sharded_ = !format.is_folder() && !named;
  if (sharded_) suffix_ = format.suffixes.front();
  std::replace(stem_.begin(), stem_.end(), '/', '_');
}

std::string ConvertPlaces::state_file() const {
  return destination_ + (sharded_ ? "/packing.json" : ".packing.json");
}

std::string ConvertPlaces::shard_name(size_t shard) const {
  if (!sharded_) return std::filesystem::path(destination_).filename();
  char number[32];
  std::snprintf(number, sizeof(number), "-%06zu", shard);
  return stem_ + number + suffix_;
}

void ConvertPlaces::check_free() const {
  if (there(state_file())) return;
  TORCH_CHECK_VALUE(!there(destination_ + ".partial"), "convert: ", destination_, ".partial",
                    " is there without a state file: it may belong to another data set. Remove it and start anew.");
  if (!there(destination_)) return;
  if (sharded_ && there(description())) {
    DatasetInfo info;
    TORCH_CHECK_VALUE(!read_dataset_json(description(), info).contains(stem_), "convert: ", destination_,
                      " has a split \"", stem_, "\" already. Choose another name, or remove it.");
    return;
  }
  std::error_code error;
  bool empty = sharded_ && std::filesystem::is_directory(destination_, error);
  for (const auto& entry : std::filesystem::directory_iterator(destination_, error))  // what kill -9 may leave of the
    empty = empty && entry.path().filename().string().starts_with("packing.json.tmp-");  // first state file
  TORCH_CHECK_VALUE(empty && !error, "convert: ", destination_,
                    " is there already, and is no unfinished conversion. Choose another name, or remove it.");
}

void ConvertPlaces::make_folder() const {
  const std::string folder = sharded_ ? destination_ : parent_of(destination_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "convert: cannot make the folder ", folder, ": ", errno_message(error.value()), ".");
}

void ConvertPlaces::remove_leftovers(size_t shard) const {
  const std::string name = shard_name(shard);
  std::vector<std::string> names{name, std::filesystem::path(state_file()).filename()};
  if (sharded_) names.push_back(std::filesystem::path(description()).filename());
  if (name.ends_with(".rec")) names.push_back(recordio_index_path(name));
  if (name.ends_with(".tfrecord") || name.ends_with(".tfrecords")) names.push_back(tfrecord_index_path(name));
  if (name.ends_with(".tar")) names.push_back(name + ".unfinished");
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry :
       std::filesystem::directory_iterator(sharded_ ? destination_ : parent_of(destination_), error)) {
    const std::string found = entry.path().filename();
    const bool ours =
        std::ranges::any_of(names, [&](const std::string& written) { return is_temporary_of(written, found); });
    if (ours || (name.ends_with(".tar") && found == name + ".unfinished")) leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) std::filesystem::remove_all(path, error);
}

}  // namespace bellows::data
