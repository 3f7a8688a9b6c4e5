#include "bellows/data/formats/folder_source.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/file_starts.h"
#include "bellows/data/picture.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

/// A file is read with one call; larger files are not training images.
constexpr uint64_t kMaxPictureBytes = uint64_t{1} << 31;

/// In lower case, without the dot.
std::string suffix_of(const fs::path& path) {
  const std::string suffix = lower_case(path.extension().string());
  return suffix.empty() ? suffix : suffix.substr(1);
}

/// The field name of a suffix; nothing for files that are not images.
std::string_view picture_field(const std::string& suffix) {
  for (const std::string_view name : {"jpg", "jpeg", "png"}) {
    if (suffix == name) return name;
  }
  return {};
}

bool is_other_picture(const std::string& suffix) {
  constexpr std::array<std::string_view, 6> others{"ppm", "bmp", "pgm", "tif", "tiff", "webp"};
  return std::find(others.begin(), others.end(), suffix) != others.end();
}

std::vector<std::string> sorted_subfolders(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error, ignored;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
  }
  TORCH_CHECK_VALUE(!error, "open_image_folder: cannot list ", folder.string(), ": ", errno_message(error.value()),
                    ".");
  std::sort(names.begin(), names.end());
  return names;
}

bool is_split_name(const std::string& name) {
  constexpr std::array<std::string_view, 5> names{"train", "val", "valid", "validation", "test"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

class FileHandle {
 public:
  explicit FileHandle(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}  // opening a pipe would block
  ~FileHandle() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Reads the whole file into reused memory.
void read_into(const std::string& path, std::vector<std::byte>& buffer) {
  const FileHandle file(path);
  struct stat status {};
  TORCH_CHECK_VALUE(file.get() >= 0 && ::fstat(file.get(), &status) == 0, "read: cannot open ", path, ": ",
                    errno_message(errno), ".");
  const auto size = static_cast<uint64_t>(status.st_size);
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), "read: ", path, ": expected a regular file, found a ",
                    S_ISDIR(status.st_mode) ? "folder" : "pipe, a socket or a device", ".");
  TORCH_CHECK_VALUE(size <= kMaxPictureBytes, "read: ", path, ": expected at most 2 GiB, found ", size, " bytes.");
  buffer.resize(size);
  for (uint64_t at = 0; at < size;) {
    const ssize_t got = ::read(file.get(), buffer.data() + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK_VALUE(got > 0, "read: ", path, " cannot be read at byte ", at, " of ", size, ": ",
                      got < 0 ? errno_message(errno) : std::string("the file ends early"), ".");
    at += static_cast<uint64_t>(got);
  }
}

class ImageFolderSource final : public Source {
 public:
  using Source::read;

  explicit ImageFolderSource(const std::string& folder) : folder_(folder) {
    while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
    const std::vector<std::string> classes = sorted_subfolders(folder_);
    for (size_t i = 0; i < classes.size(); ++i) {
      const size_t before = pictures_.size();
      labels_.push_back(static_cast<int64_t>(i));
      add_files(fs::path(folder_) / classes[i], true);
      TORCH_CHECK_VALUE(pictures_.size() > before, "open_image_folder: the class folder ", folder_, "/", classes[i],
                        " has no .jpg, .jpeg or .png file. Remove the folder or add images, because labels are the "
                        "positions of the class folders.");
      starts_.add(static_cast<int64_t>(before));
    }
    if (classes.empty()) add_files(folder_, false);
    TORCH_CHECK_VALUE(!pictures_.empty(), "open_image_folder: ", folder_, " has no .jpg, .jpeg or .png file.");
    TORCH_CHECK_VALUE(others_ == 0, "open_image_folder: ", others_, " images have an unsupported format, such as ",
                      first_other_, ". Convert them to JPEG or PNG, or move them to another folder.");
  }

  int64_t size() const override { return static_cast<int64_t>(pictures_.size()); }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size(), " images in ", folder_); }

  bool prefetch(int64_t index) const override {
    thread_local std::vector<std::byte> unused;
    read_into(pictures_[static_cast<size_t>(index)], unused);  // the data stays in the system's page cache
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    const std::string& path = pictures_[static_cast<size_t>(index)];
    const size_t dot = path.rfind('.');
    sample.clear();
    sample.id = index;
    sample.file = path;
    sample.key = std::string_view(path).substr(folder_.size() + 1, dot - folder_.size() - 1);
    read_into(path, sample.buffer);
    sample.fields.push_back({.name = picture_field(suffix_of(path)), .bytes = sample.buffer});
    if (labels_.empty()) return;
    const int64_t& label = labels_[starts_.file_of(index)];
    Field field{.name = "label", .bytes = std::as_bytes(std::span(&label, 1)), .is_array = true};
    field.dtype = c10::kLong;
    sample.fields.push_back(field);
  }

 private:
  void add_files(const fs::path& folder, bool recursive) {
    std::vector<std::string> folders{folder.string()};
    if (recursive) add_subfolders(folder, folders, 0);
    std::sort(folders.begin(), folders.end());  // sorted by whole paths, like torchvision
    for (const std::string& one : folders) {
      std::vector<std::string> files;
      std::error_code error, ignored;
      fs::directory_iterator entry(one, error);
      for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
        if (!entry->is_directory(ignored)) files.push_back(entry->path().string());
      }
      TORCH_CHECK_VALUE(!error, "open_image_folder: cannot list ", one, ": ", errno_message(error.value()), ".");
      std::sort(files.begin(), files.end());
      for (std::string& file : files) add_file(std::move(file));
    }
  }

  static void add_subfolders(const fs::path& folder, std::vector<std::string>& folders, int depth) {
    TORCH_CHECK_VALUE(depth < 64, "open_image_folder: ", folder.string(),
                      ": folders are nested more than 64 levels deep.");
    for (const std::string& name : sorted_subfolders(folder)) {
      folders.push_back((folder / name).string());
      add_subfolders(folder / name, folders, depth + 1);
    }
  }

  void add_file(std::string path) {
    const std::string suffix = suffix_of(path);
    if (is_other_picture(suffix) && others_++ == 0) first_other_ = path;
    if (!picture_field(suffix).empty()) pictures_.push_back(std::move(path));
  }

  std::string folder_;
  std::vector<std::string> pictures_;  // paths
  std::vector<int64_t> labels_;        // 0, 1, …: the memory that label fields point to
  FileStarts starts_;                  // of the classes
  int64_t others_ = 0;
  std::string first_other_;
};

/// Individual files, in any folders.
class ImageFilesSource final : public Source {
 public:
  using Source::read;

  explicit ImageFilesSource(std::vector<std::string> paths) : paths_(std::move(paths)) {
    TORCH_CHECK_VALUE(!paths_.empty(), "open_image_files: expected at least one file, got none.");
  }

  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size(), " images (", paths_.front(), ", …)"); }
  bool prefetch(int64_t index) const override {
    thread_local std::vector<std::byte> unused;
    read_into(paths_[static_cast<size_t>(index)], unused);
    return true;
  }
  void read(int64_t index, Sample& sample) const override {
    const std::string& path = paths_[static_cast<size_t>(index)];
    sample.clear();
    sample.id = index;
    sample.file = sample.key = path;
    read_into(path, sample.buffer);
    sample.fields.push_back({.name = picture_name(sample.buffer, "image"), .bytes = sample.buffer});
  }

 private:
  std::vector<std::string> paths_;
};

void add_image_files(const fs::path& folder, std::vector<std::string>& files, int depth) {
  TORCH_CHECK_VALUE(depth < 64, "list_image_files: ", folder.string(),
                    ": folders are nested more than 64 levels deep.");
  std::error_code error, ignored;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().string().starts_with('.')) continue;
    if (entry->is_directory(ignored)) {
      add_image_files(entry->path(), files, depth + 1);
    } else if (is_picture_name(entry->path())) {
      files.push_back(entry->path().string());
    }
  }
  TORCH_CHECK_VALUE(!error, "list_image_files: cannot list ", folder.string(), ": ", errno_message(error.value()), ".");
}

}  // namespace

std::vector<std::string> list_image_files(const std::string& folder) {
  std::vector<std::string> files;
  add_image_files(folder, files, 0);
  std::sort(files.begin(), files.end());
  return files;
}

SourcePtr open_image_files(std::vector<std::string> paths) {
  return std::make_shared<ImageFilesSource>(std::move(paths));
}

bool is_picture_name(const std::filesystem::path& path) {
  return !picture_field(suffix_of(path)).empty();
}

std::vector<std::string> image_folder_splits(const std::string& folder) {
  std::vector<std::string> names = sorted_subfolders(folder);
  return std::all_of(names.begin(), names.end(), is_split_name) ? names : std::vector<std::string>();
}

std::vector<std::string> image_folder_classes(const std::string& folder) {
  return sorted_subfolders(folder);
}

SourcePtr open_image_folder(const std::string& folder, const std::string& split) {
  const std::vector<std::string> splits = image_folder_splits(folder);
  if (split.empty()) {
    TORCH_CHECK_VALUE(splits.empty(), "open_image_folder: ", folder, " has the splits ", c10::Join(", ", splits),
                      ". Choose one of the splits.");
    return std::make_shared<ImageFolderSource>(folder);
  }
  TORCH_CHECK_VALUE(
      std::find(splits.begin(), splits.end(), split) != splits.end(), "open_image_folder: ", folder, " has no split \"",
      split, "\".", did_you_mean(split, splits),
      splits.empty() ? std::string(" It has no splits.") : " The splits are: " + c10::Join(", ", splits) + ".");
  return std::make_shared<ImageFolderSource>((fs::path(folder) / split).string());
}

}  // namespace bellows::data
