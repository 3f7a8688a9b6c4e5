#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/data/formats/new_folder.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/table_impl.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

class JsonlSource final : public Source {
 public:
  using Source::read;

  JsonlSource(const std::vector<std::string>& paths, JsonlOptions options)
      : options_(std::move(options)), files_(paths) {
    for (size_t file = 0; file < files_.size(); ++file) {
      maps_.push_back(files_.map(file));
      pictures_.emplace_back(options_.image_folder, files_.name(file));
      starts_.push_back(size());
      add_lines(file);
    }
    TORCH_CHECK_VALUE(!lines_.empty(), "open_jsonl: ", files_.describe(), " has no lines.");
    TORCH_CHECK_VALUE(options_.image_column.empty() || columns_.contains(options_.image_column),
                      "open_jsonl: ", files_.describe(), " has nothing called \"", options_.image_column, "\".");
  }

  int64_t size() const override { return static_cast<int64_t>(lines_.size()); }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size(), " lines of ", files_.describe()); }
  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> starts = starts_;
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    if (starts.back() == size()) starts.pop_back();  // files without lines
    return starts;
  }

  void read(int64_t index, Sample& sample) const override {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), index);
    const auto file = static_cast<size_t>(next - starts_.begin() - 1);
    sample.clear();
    sample.id = index;
    sample.file = files_.name(file);
    const uint64_t at = lines_[static_cast<size_t>(index)];
    try {
      maps_[file]->check_size();
      const std::string_view line = line_at(file, at);
      read_json_record(
          line, [&] { return where(file, at); }, columns_, sample);
      for (Field& field : sample.fields) field.offset = at;
      take_key(sample);
      take_picture(file, sample);
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "read: sample ", index, ": ", user_message(error));
    }
  }

 private:
  std::string_view line_at(size_t file, uint64_t at) const {
    const std::string_view text = io::as_text(maps_[file]->bytes());
    return text.substr(at, std::min(text.find('\n', at), text.size()) - at);
  }
  std::string where(size_t file, uint64_t at) const {
    const std::string_view before = io::as_text(maps_[file]->bytes()).substr(0, at);
    return c10::str(files_.name(file), ", line ", 1 + std::count(before.begin(), before.end(), '\n'), ", byte ", at);
  }

  void add_lines(size_t file) {
    const uint64_t end = maps_[file]->bytes().size();
    for (uint64_t at = 0; at < end;) {
      const std::string_view line = line_at(file, at);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        learn_json_record(
            line, [&] { return where(file, at); }, columns_);
        lines_.push_back(at);
      }
      at += line.size() + 1;
    }
  }

  static void take_key(Sample& sample) {
    const Field* key = sample.find("__key__");
    if (!key || key->is_array) return;
    sample.key = io::as_text(key->bytes);
    sample.fields.erase(sample.fields.begin() + (key - sample.fields.data()));
  }

  void take_picture(size_t file, Sample& sample) const {
    if (options_.image_column.empty()) return;
    const Field* path = sample.find(options_.image_column);
    TORCH_CHECK_VALUE(path && !path->is_array, where(file, lines_[static_cast<size_t>(sample.id)]),
                      ": expected the path of a picture under \"", options_.image_column, "\".");
    const std::string_view text = io::as_text(path->bytes);
    sample.fields.erase(sample.fields.begin() + (path - sample.fields.data()));
    pictures_[file].add(text, sample);
  }

  JsonlOptions options_;
  ShardFiles files_;
  std::vector<std::shared_ptr<const MappedFile>> maps_;
  std::vector<PictureFolder> pictures_;
  JsonColumns columns_;
  std::vector<uint64_t> lines_;  // where each line starts in its file
  std::vector<int64_t> starts_;  // the first line of each file
};

}  // namespace

SourcePtr open_jsonl(const std::vector<std::string>& paths, const JsonlOptions& options) {
  return std::make_shared<JsonlSource>(paths, options);
}

PictureFolder::PictureFolder(const std::string& folder, const std::string& table) : folder_(folder) {
  const size_t slash = table.rfind('/');
  if (folder_.empty()) folder_ = slash == std::string::npos ? "." : table.substr(0, slash + 1);
  if (!folder_.ends_with('/')) folder_ += '/';
}

void PictureFolder::add(std::string_view path, Sample& sample) const {
  while (path.starts_with("./")) path.remove_prefix(2);
  TORCH_CHECK_VALUE(stays_inside(path), "expected the path of a picture below ", folder_, ", found ",
                    io::printable(path, 200), ". Say where paths start (image_folder); \"..\" is not followed.");
  auto map = std::make_shared<const MappedFile>(folder_ + std::string(path));
  sample.fields.push_back({.name = "image", .bytes = map->bytes()});
  sample.owner = std::move(map);
}

}  // namespace bellows::data
