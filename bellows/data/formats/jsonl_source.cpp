#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/data/formats/json_record.h"
#include "bellows/data/formats/row_source.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

class JsonlSource final : public RowSource {
 public:
  JsonlSource(const std::vector<std::string>& paths, JsonlOptions options)
      : RowSource(paths, options.image_folder), options_(std::move(options)) {
    for (size_t file = 0; file < files_.size(); ++file) add_lines(file);
    TORCH_CHECK_VALUE(rows_.size() > 0, "open_jsonl: ", files_.describe(), " contains no lines.");
    TORCH_CHECK_VALUE(options_.image_column.empty() || columns_.contains(options_.image_column),
                      "open_jsonl: ", files_.describe(), " has no key \"", options_.image_column, "\".");
  }

  std::string describe() const override { return c10::str(size(), " lines of ", files_.describe()); }

 private:
  void fill(size_t file, uint64_t at, Sample& sample) const override {
    const std::string_view text = io::as_text(files_.content(file, sample.owner));
    const auto here = [&] { return where(file, text, at); };
    parse_content(files_, file, [&] { read_json_record(line_at(text, at), here, columns_, sample); });
    for (Field& field : sample.fields) field.offset = at;
    take_key(sample);
    if (!options_.image_column.empty()) take_picture(file, here, sample);
  }

  static std::string_view line_at(std::string_view text, uint64_t at) {
    return text.substr(at, std::min(text.find('\n', at), text.size()) - at);
  }
  std::string where(size_t file, std::string_view text, uint64_t at) const {
    const std::string_view before = text.substr(0, at);
    return c10::str(files_.name(file), ", line ", 1 + std::count(before.begin(), before.end(), '\n'), ", byte ", at);
  }

  void add_lines(size_t file) {
    std::shared_ptr<const void> owner;
    const std::string_view text = io::as_text(files_.content(file, owner));
    rows_.add_file();
    for (uint64_t at = 0; at < text.size();) {
      const std::string_view line = line_at(text, at);
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        const auto here = [&] { return where(file, text, at); };
        parse_content(files_, file, [&] { learn_json_record(line, here, columns_); });
        rows_.add(at);
      }
      at += line.size() + 1;
    }
  }

  static void take_key(Sample& sample) {
    const Field* key = sample.find("__key__");
    if (!key || key->is_array || is_json_value(*key)) return;
    sample.key = io::as_text(key->bytes);
    sample.fields.erase(sample.fields.begin() + (key - sample.fields.data()));
  }

  template <class Where>
  void take_picture(size_t file, const Where& where, Sample& sample) const {
    const Field* path = sample.find(options_.image_column);
    TORCH_CHECK_VALUE(path && !path->is_array && !is_json_value(*path), where(),
                      ": expected the path of an image under \"", options_.image_column, "\".");
    const std::string_view text = io::as_text(path->bytes);
    sample.fields.erase(sample.fields.begin() + (path - sample.fields.data()));
    pictures_[file].add(text, sample);
  }

  JsonlOptions options_;
  JsonColumns columns_;
};

}  // namespace

SourcePtr open_jsonl(const std::vector<std::string>& paths, const JsonlOptions& options) {
  return std::make_shared<JsonlSource>(paths, options);
}

}  // namespace bellows::data
