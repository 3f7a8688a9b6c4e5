#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "bellows/train/run/log_file.h"

namespace bellows::train {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view csv_start = "step,seconds,time";
constexpr size_t fixed_columns = 3;

/// A field as RFC 4180 has it.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted_text = "\"";
  for (const char c : text) quoted_text += c == '"' ? "\"\"" : std::string(1, c);
  return quoted_text + "\"";
}

/// The fields of the record at the start of `text`, which is shortened by it. Nothing where its line has no end.
std::optional<std::vector<std::string>> take_csv_record(std::string_view& text) {
  std::vector<std::string> fields(1);
  bool in_quotes = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && in_quotes && text.substr(i + 1).starts_with('"')) {
      fields.back() += text[++i];
    } else if (c == '"') {
      in_quotes = !in_quotes;
    } else if (in_quotes || (c != ',' && c != '\n')) {
      fields.back() += c;
    } else if (c == ',') {
      fields.emplace_back();
    } else {
      text.remove_prefix(i + 1);
      return fields;
    }
  }
  return {};
}

template <class T>
bool parse_field(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string csv_number(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::optional<LogRow> csv_row(const std::vector<std::string>& fields, const std::vector<std::string>& columns) {
  LogRow row;
  if (fields.size() != columns.size() + fixed_columns || !parse_field(fields[0], row.step) || row.step < 0) return {};
  if (!parse_field(fields[1], row.seconds)) return {};
  row.time = fields[2];
  for (size_t i = 0; i < columns.size(); ++i) {
    double value = 0;
    if (parse_field(fields[i + fixed_columns], value)) row.values.emplace_back(columns[i], value);
  }
  return row;
}

std::string json_line(const LogRow& row) {
  Json object = {{"step", row.step}, {"seconds", row.seconds}, {"time", row.time}};
  for (const auto& [name, value] : row.values) object[name] = value;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<LogRow> json_row(std::string_view line) {
  const Json object = Json::parse(line, nullptr, false);
  LogRow row;
  if (!object.is_object()) return {};
  for (const auto& [name, value] : object.items()) {
    if (name == "step" && value.is_number_integer()) {
      row.step = value.get<int64_t>();
    } else if (name == "seconds" && value.is_number()) {
      row.seconds = value.get<double>();
    } else if (name == "time" && value.is_string()) {
      row.time = value.get<std::string>();
    } else if (value.is_number() || value.is_null()) {
      row.values.emplace_back(name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    }
  }
  if (row.step < 0) return {};
  return row;
}

}  // namespace

void LogRow::merge(const NamedValues& more) {
  for (const auto& item : more) {
    const auto known = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == item.first; });
    if (known == values.end()) {
      values.push_back(item);
    } else {
      known->second = item.second;
    }
  }
}

RowFile::~RowFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::string RowFile::text() const {
  std::error_code ignored;
  return std::filesystem::exists(path_, ignored) ? read_text_file(path_) : "";
}

void RowFile::replace(std::string_view text, size_t last_row) {
  write_text_file(path_, text);
  if (fd_ >= 0) ::close(fd_);
  // A link is followed: write_text_file() did so, too. Opening a pipe would wait for its reader.
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  TORCH_CHECK(fd_ >= 0, "cannot write ", path_, ": ", errno_message(errno), ".");
  last_row_ = last_row;
  size_ = text.size();
}

void RowFile::write(std::string_view line, bool over_last) {
  if (!over_last) last_row_ = size_;
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = ::pwrite(fd_, line.data() + done, line.size() - done, static_cast<off_t>(last_row_ + done));
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written >= 0, "cannot write ", path_, " at byte ", last_row_ + done, ": ", errno_message(errno), ".");
    done += static_cast<size_t>(written);
  }
  const size_t before = std::exchange(size_, last_row_ + line.size());
  if (size_ >= before) return;
  TORCH_CHECK(::ftruncate(fd_, static_cast<off_t>(size_)) == 0, "cannot cut ", path_, ": ", errno_message(errno), ".");
}

CsvLog::CsvLog(const std::string& path, int64_t last_step) : file_(path) {
  read(file_.text(), last_step);
}

void CsvLog::read(std::string_view text, int64_t last_step) {
  std::string_view rest = text;
  const auto head = take_csv_record(rest);
  TORCH_CHECK_VALUE(text.starts_with(csv_start) || csv_start.starts_with(text), "log: ", file_.path(),
                    " is no log of a run: expected it to begin with ", csv_start, ". Move it away.");
  if (head) columns_.assign(head->begin() + fixed_columns, head->end());
  size_t row_start = 0, end = text.size() - rest.size();
  while (head) {
    const auto fields = take_csv_record(rest);
    const auto row = fields ? csv_row(*fields, columns_) : std::nullopt;
    if (!row || row->step > last_step) break;
    last_ = *row;
    row_start = std::exchange(end, text.size() - rest.size());
  }
  file_.replace(head ? std::string(text.substr(0, end)) : std::string(csv_start) + "\n", row_start);
}

/// A new name is a column more, also in the rows that are there.
void CsvLog::add_columns(const LogRow& row) {
  const size_t known = columns_.size();
  for (const auto& [name, value] : row.values) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) columns_.push_back(name);
  }
  if (columns_.size() == known) return;
  const std::string before = file_.text(), commas(columns_.size() - known, ',');
  std::string_view rest = before;
  take_csv_record(rest);
  std::string text(csv_start);
  for (const std::string& name : columns_) text += "," + csv_field(name);
  size_t row_start = text.size() + 1;
  text += "\n";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    row_start = text.size();
    text += std::string(rest.substr(0, end)) + commas + "\n";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  file_.replace(text, row_start);
}

std::string CsvLog::line_of(const LogRow& row) const {
  std::string line = std::to_string(row.step) + "," + csv_number(row.seconds) + "," + row.time;
  for (const std::string& column : columns_) {
    const auto value =
        std::find_if(row.values.begin(), row.values.end(), [&](const auto& v) { return v.first == column; });
    line += ',';
    if (value != row.values.end()) line += csv_number(value->second);
  }
  return line + "\n";
}

void CsvLog::write(const LogRow& row) {
  add_columns(row);
  file_.write(line_of(row), row.step == last_.step);
  last_ = row;
}

JsonLog::JsonLog(const std::string& path, int64_t last_step) : file_(path) {
  const std::string text = file_.text();
  size_t begin = 0, row_start = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos;) {
    const auto row = json_row(std::string_view(text).substr(begin, end - begin));
    TORCH_CHECK_VALUE(row || begin > 0, "log: ", path,
                      " is no log of a run: expected objects with a \"step\". Move it away.");
    if (!row || row->step > last_step) break;
    last_ = *row;
    row_start = std::exchange(begin, end + 1);
  }
  TORCH_CHECK_VALUE(begin > 0 || text.empty() || text.starts_with("{\"step\""), "log: ", path,
                    " is no log of a run: expected objects with a \"step\". Move it away.");
  file_.replace(std::string_view(text).substr(0, begin), row_start);
}

void JsonLog::write(const LogRow& row) {
  file_.write(json_line(row), row.step == last_.step);
  last_ = row;
}

}  // namespace bellows::train
