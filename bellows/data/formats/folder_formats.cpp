#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/formats/formats.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

/// "train.tfrecord" of "train.tfrecord-00003-of-00100".
std::string without_count(const std::string& name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string::npos || of + 4 == name.size()) return name;
  if (name.find_first_not_of("0123456789", of + 4) != std::string::npos) return name;
  const size_t dash = name.find_last_not_of("0123456789", of - 1);
  const bool numbered = dash != std::string::npos && dash > 0 && dash + 1 < of && name[dash] == '-';
  return numbered ? name.substr(0, dash) : name;
}

std::string lower_suffix(const fs::path& path) {
  return lower_case(path.extension().string());
}

/// ".tar.gz" of a compressed file: two files ".gz" may hold different things.
std::string kind_suffix(const std::string& file) {
  const fs::path name = without_count(file);
  const std::string suffix = lower_suffix(name);
  for (const char* packed : {".gz", ".bz2", ".xz", ".zst", ".lz4"}) {
    if (suffix == packed) return lower_suffix(name.stem()) + suffix;
  }
  return suffix;
}

/// "train" of "train-0003"; the whole stem when no number ends it.
std::string split_of(const std::string& path) {
  std::string stem = without_count(fs::path(path).filename().string());
  const size_t suffix = kind_suffix(stem).size();
  stem.erase(stem.size() - suffix);
  const size_t digits = stem.find_last_not_of("0123456789");
  if (digits != std::string::npos && digits + 1 < stem.size()) stem.erase(digits + 1);
  while (stem.size() > 1 && (stem.back() == '-' || stem.back() == '_')) stem.pop_back();
  return stem;
}

/// Names of a folder, by what they are.
struct Listing {
  std::map<std::string, std::vector<std::string>> files;  ///< by suffix, sorted
  std::vector<std::string> folders;
  bool pictures = false;

  explicit Listing(const fs::path& folder) {
    std::error_code error, ignored;
    fs::directory_iterator entry(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with('.')) continue;
      if (entry->is_directory(ignored)) {
        folders.push_back(entry->path().string());
      } else if (is_picture_name(name)) {
        pictures = true;
      } else {
        files[kind_suffix(name)].push_back(entry->path().string());
      }
    }
    TORCH_CHECK_VALUE(!error, "open: cannot list the folder ", folder.string(), ": ", errno_message(error.value()),
                      ".");
    for (auto& [suffix, names] : files) std::sort(names.begin(), names.end());
    std::sort(folders.begin(), folders.end());
  }
};

bool holds_pictures(const std::string& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error); !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    if (is_picture_name(entry->path())) return true;
  }
  return false;
}

/// Each format once, with the files whose suffix one file of that format has.
std::map<const FileFormat*, std::vector<std::string>> formats_in(const Listing& listing) {
  std::map<const FileFormat*, std::vector<std::string>> found;
  for (const auto& [suffix, names] : listing.files) {
    const MappedFile first(names.front());
    const FileFormat* format = nullptr;
    try {
      format = recognise(first.bytes(), names.front());
    } catch (const c10::ValueError&) {  // damaged: what it is will be said where it is opened by its name
    }
    if (!format) continue;
    auto& files = found[format];
    files.insert(files.end(), names.begin(), names.end());
    std::sort(files.begin(), files.end());
  }
  return found;
}

}  // namespace

Splits splits_by_name(const FolderContent& content) {
  if (content.format->name.ends_with("(.npy)")) return {{"all", content.files}};
  Splits splits;
  for (const std::string& file : content.files) splits[split_of(file)].push_back(file);
  return splits;
}

std::vector<std::string> split_folders(const std::string& folder) {
  std::vector<std::string> splits = image_folder_splits(folder);
  for (const std::string& path : Listing(folder).folders) {
    std::error_code ignored;
    const bool described = fs::exists(fs::path(path) / "index.json", ignored);
    if (described) splits.push_back(fs::path(path).filename().string());
  }
  std::sort(splits.begin(), splits.end());
  splits.erase(std::unique(splits.begin(), splits.end()), splits.end());
  return splits;
}

FolderContent examine_folder(const std::string& folder) {
  const Listing listing(folder);
  std::vector<std::string> found;
  FolderContent content;
  std::error_code ignored;
  if (fs::exists(fs::path(folder) / "index.json", ignored)) {
    found.emplace_back("an MDS index.json");
    content.kind = FolderContent::Kind::mds;
  }
  const auto formats = formats_in(listing);
  const bool has_shards =
      std::any_of(formats.begin(), formats.end(), [](const auto& found_one) { return !found_one.first->text; });
  const bool has_classes = !has_shards && std::any_of(listing.folders.begin(), listing.folders.end(), holds_pictures);
  if (listing.pictures || has_classes) {
    found.emplace_back("JPEG or PNG pictures");
    content.kind = FolderContent::Kind::images;
  }
  for (const bool text : {false, true}) {
    if (text && !found.empty()) break;
    for (const auto& [format, files] : formats) {
      if (format->text != text || (format->name.starts_with("MDS") && !found.empty())) continue;
      found.push_back(c10::str(files.size(), " files of the format ", format->name, " (", files.front(),
                               files.size() > 1 ? ", …)" : ")"));
      content = {FolderContent::Kind::files, format, files};
    }
  }
  TORCH_CHECK_VALUE(found.size() < 2, "open: the folder ", folder, " is ambiguous: it holds ", c10::Join("; ", found),
                    ". Name the files: a pattern such as ", folder, "/*.tar, or a folder below.");
  TORCH_CHECK_VALUE(!found.empty(), "open: found no shards in the folder ", folder,
                    ", nor anything else that is known: ", accepted_formats(),
                    ", MDS shards with their index.json, JPEG or PNG pictures.");
  return content;
}

}  // namespace bellows::data
