#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bellows/data/formats/json_record.h"
#include "bellows/data/formats/table_files.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/io/tables/csv.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::data {

namespace {

class CsvSink final : public Sink {
 public:
  CsvSink(const std::string& path, const CsvSinkOptions& options) : file_(path), separator_(options.separator) {
    TORCH_CHECK_VALUE(separator_ != '"' && separator_ != '\n' && separator_ != '\r',
                      "csv_sink: the separator cannot be a quote or a line end.");
  }

  void write(const Sample& sample) override {
    if (names_.empty()) start(sample);
    TORCH_CHECK_VALUE(sample.fields.size() == names_.size() && sample.key.empty() != has_key_,
                      "csv_sink: ", sample.where(), " has different fields than the samples before it, or no key.");
    std::string row;
    if (has_key_) add_cell(row, text_of(io::as_bytes(sample.key), sample, nullptr), true);
    for (size_t i = 0; i < names_.size(); ++i) {
      const Field* field = sample.find(names_[i]);
      TORCH_CHECK_VALUE(field, "csv_sink: ", sample.where(), " has no \"", names_[i], "\", which other samples have.");
      add_cell(row, cell_of(*field, sample), i == 0 && !has_key_);
    }
    file_.write(row + "\r\n");
  }

  void close() override { file_.commit(); }

 private:
  void start(const Sample& sample) {
    TORCH_CHECK_VALUE(!sample.fields.empty(), "csv_sink: ", sample.where(), " has no fields.");
    has_key_ = !sample.key.empty();
    std::string header;
    if (has_key_) add_cell(header, "__key__", true);
    for (const Field& field : sample.fields) {
      TORCH_CHECK_VALUE(std::find(names_.begin(), names_.end(), field.name) == names_.end(),
                        "csv_sink: ", sample.where(&field), ": two fields have the name \"", field.name, "\".");
      add_cell(header, text_of(io::as_bytes(field.name), sample, &field), names_.empty() && !has_key_);
      names_.emplace_back(field.name);
    }
    file_.write(header + "\r\n");
  }

  void add_cell(std::string& row, std::string_view text, bool first) const {
    if (!first) row += separator_;
    // Quote it, because a row of one empty cell would be an empty line.
    io::append_csv_cell(row, text, separator_, first && names_.size() + (has_key_ ? 1 : 0) < 2);
  }

  static std::string text_of(io::ByteSpan bytes, const Sample& sample, const Field* field) {
    const std::string_view text = io::as_text(bytes);
    TORCH_CHECK_VALUE(io::is_utf8(text) && text.find('\0') == std::string_view::npos, "csv_sink: ", sample.where(field),
                      ": a CSV file stores text and numbers, found ", io::describe_content(bytes), ".");
    return std::string(text);
  }

  static std::string cell_of(const Field& field, const Sample& sample) {
    if (!field.is_array) return text_of(field.bytes, sample, &field);
    const c10::ScalarType dtype = field.dtype == c10::kBool ? c10::kByte : field.dtype;  // CSV has only 0 and 1
    const std::string text = field.sizes.empty() ? number_text(dtype, field.bytes.data()) : "";
    TORCH_CHECK_VALUE(!text.empty(), "csv_sink: ", sample.where(&field),
                      ": a CSV file stores single numbers, found an array of ", c10::toString(field.dtype), " ",
                      field.sizes, ". Write JSON Lines or arrays.");
    return text;
  }

  TextWriter file_;
  char separator_;
  bool has_key_ = false;
  std::vector<std::string> names_;
};

std::string quoted_json(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true);
}

class JsonlSink final : public Sink {
 public:
  explicit JsonlSink(const std::string& path) : file_(path) {}

  void write(const Sample& sample) override {
    std::string line;
    const auto add = [&](std::string_view name, const std::string& value) {
      line += (line.empty() ? "{" : ", ") + quoted_json(checked(name, sample, nullptr)) + ": " + value;
    };
    if (!sample.key.empty()) add("__key__", quoted_json(checked(sample.key, sample, nullptr)));
    for (const Field& field : sample.fields) {
      TORCH_CHECK_VALUE(sample.find(field.name) == &field && field.name != "__key__",
                        "jsonl_sink: ", sample.where(&field), ": two fields have the name \"", field.name, "\".");
      if (field.is_array) {
        const std::byte* at = field.bytes.data();
        std::string value;
        append_list(field, sample, 0, at, value);
        add(field.name, value);
      } else {
        const std::string_view text = checked(io::as_text(field.bytes), sample, &field);
        add(field.name, is_json_value(field) ? std::string(text) : quoted_json(text));
      }
    }
    file_.write((line.empty() ? "{" : line) + "}\n");
  }

  void close() override { file_.commit(); }

 private:
  static std::string_view checked(std::string_view text, const Sample& sample, const Field* field) {
    TORCH_CHECK_VALUE(io::is_utf8(text), "jsonl_sink: ", sample.where(field), ": JSON stores text and numbers, found ",
                      io::describe_content(io::as_bytes(text)), ".");
    return text;
  }

  static void append_list(const Field& field, const Sample& sample, size_t dim, const std::byte*& at,
                          std::string& out) {
    if (dim < field.sizes.size()) {
      out += '[';
      for (int64_t i = 0; i < field.sizes[dim]; ++i) {
        if (i > 0) out += ", ";
        append_list(field, sample, dim + 1, at, out);
      }
      out += ']';
      return;
    }
    const bool boolean = field.dtype == c10::kBool;
    const std::string text = boolean ? (*at != std::byte{} ? "true" : "false") : number_text(field.dtype, at);
    TORCH_CHECK_VALUE(!text.empty() && text != "nan" && text != "inf" && text != "-inf",
                      "jsonl_sink: ", sample.where(&field), ": JSON cannot represent ",
                      text.empty() ? std::string(c10::toString(field.dtype)) : text, ".");
    out += text;
    at += c10::elementSize(field.dtype);
  }

  TextWriter file_;
};

}  // namespace

std::unique_ptr<Sink> csv_sink(const std::string& path, const CsvSinkOptions& options) {
  return std::make_unique<CsvSink>(path, options);
}

std::unique_ptr<Sink> jsonl_sink(const std::string& path) {
  return std::make_unique<JsonlSink>(path);
}

}  // namespace bellows::data
