#include "bellows/data/text/text_lines.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <utility>
#include <vector>

#include "bellows/system/file.h"

namespace bellows::data {

namespace {

class TextLines final : public Source {
 public:
  using Source::read;

  explicit TextLines(std::string path) : path_(std::move(path)), text_(read_text_file(path_)) {
    for (size_t at = 0; at < text_.size();) {
      size_t end = text_.find('\n', at);
      if (end == std::string::npos) end = text_.size();
      const bool carriage_return = end > at && text_[end - 1] == '\r';
      lines_.emplace_back(text_.data() + at, end - at - (carriage_return ? 1 : 0));
      at = end + 1;
    }
    TORCH_CHECK_VALUE(!lines_.empty(), "open_text_lines: ", path_,
                      " is empty. Expected a text file with one text per line.");
  }

  int64_t size() const override { return static_cast<int64_t>(lines_.size()); }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size(), " lines of ", path_); }
  void read(int64_t index, Sample& sample) const override {
    const std::string_view line = lines_[static_cast<size_t>(index)];
    sample.clear();
    sample.id = index;
    sample.file = path_;
    sample.fields.push_back({.name = "txt",
                             .bytes = std::as_bytes(std::span(line.data(), line.size())),
                             .offset = static_cast<uint64_t>(line.data() - text_.data())});
  }

 private:
  std::string path_, text_;
  std::vector<std::string_view> lines_;
};

}  // namespace

SourcePtr open_text_lines(const std::string& path) {
  return std::make_shared<TextLines>(path);
}

}  // namespace bellows::data
