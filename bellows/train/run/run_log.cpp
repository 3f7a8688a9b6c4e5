#include "bellows/train/run/run_log.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/io/bytes.h"
#include "bellows/io/records/event_file.h"
#include "bellows/io/tables/csv.h"
#include "bellows/system/file.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

// ---- text logs: rows are appended, and only the last row can still change

/// All values of one step.
struct LogRow {
  int64_t step = -1;   ///< negative: none yet
  double seconds = 0;  ///< since the run's start
  std::string time;    ///< UTC: "2026-11-21T22:00:00Z"
  NamedValues values;

  /// Adds values; a value replaces an earlier one of the same name.
  void merge(const NamedValues& more);
};

/// A text file of rows.
class RowFile {
 public:
  explicit RowFile(std::string path) : path_(std::move(path)) {}
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  const std::string& path() const { return path_; }
  /// Reads the whole file; "" if it does not exist.
  std::string text() const;
  /// Replaces the whole file atomically.
  /// Params: last_row – offset of the last row in `text`
  void replace(std::string_view text, size_t last_row);
  /// Appends a row, or overwrites the last one.
  void write(std::string_view line, bool over_last);

 private:
  std::string path_;
  int fd_ = -1;
  size_t last_row_ = 0, size_ = 0;
};

/// `log.csv`.
class CsvLog {
 public:
  /// Deletes the rows after `last_step`; negative: all.
  /// Throws: c10::ValueError if the file is not a log of a run; c10::Error if it cannot be written
  CsvLog(const std::string& path, int64_t last_step);
  /// The last row in the file.
  const LogRow& last() const { return last_; }
  /// Writes the row. It overwrites the last row if that has the same step.
  void write(const LogRow& row);

 private:
  void read(std::string_view text, int64_t last_step);
  void add_columns(const LogRow& row);
  std::string line_of(const LogRow& row) const;

  RowFile file_;
  std::vector<std::string> columns_;  ///< after step, seconds, time
  LogRow last_;
};

/// `log.jsonl`; members have the same meaning as those of CsvLog.
class JsonLog {
 public:
  JsonLog(const std::string& path, int64_t last_step);
  const LogRow& last() const { return last_; }
  void write(const LogRow& row);

 private:
  RowFile file_;
  LogRow last_;
};

namespace {

using SteadyClock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::string_view csv_start = "step,seconds,time";
constexpr size_t fixed_columns = 3;

/// Reads the fields of the record at `at` and advances `at`. Returns nothing if the record is incomplete: its line has
/// no end, or a quote is not closed.
std::optional<std::vector<std::string>> take_csv_record(const io::CsvReader& reader, std::string_view text,
                                                        uint64_t& at) {
  std::vector<io::CsvCell> cells;
  uint64_t end = at;
  try {
    if (reader.row_start(at) == at) end = reader.read_row(at, cells);  // an empty line is not a record
  } catch (const c10::ValueError&) {
    return {};
  }
  if (cells.empty() || text[end - 1] != '\n') return {};
  std::vector<std::string> fields;
  fields.reserve(cells.size());
  for (const io::CsvCell& cell : cells) {
    io::Bytes field;
    io::append_unquoted(cell, field);
    fields.emplace_back(io::as_text(field));
  }
  at = end;
  return fields;
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
  // Follows links, as write_text_file() did. Non-blocking, because opening a pipe would wait for its reader.
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
  TORCH_CHECK(::ftruncate(fd_, static_cast<off_t>(size_)) == 0, "cannot truncate ", path_, ": ", errno_message(errno),
              ".");
}

CsvLog::CsvLog(const std::string& path, int64_t last_step) : file_(path) {
  read(file_.text(), last_step);
}

void CsvLog::read(std::string_view text, int64_t last_step) {
  const io::CsvReader reader(io::as_bytes(text), file_.path());
  uint64_t at = 0;
  const auto head = take_csv_record(reader, text, at);
  TORCH_CHECK_VALUE(text.starts_with(csv_start) || csv_start.starts_with(text), "log: ", file_.path(),
                    " is not the log of a run: expected it to begin with ", csv_start, ". Move it to another place.");
  if (head) columns_.assign(head->begin() + fixed_columns, head->end());
  size_t row_start = 0, end = at;
  while (head) {
    const auto fields = take_csv_record(reader, text, at);
    const auto row = fields ? csv_row(*fields, columns_) : std::nullopt;
    if (!row || row->step > last_step) break;
    last_ = *row;
    row_start = std::exchange(end, at);
  }
  file_.replace(head ? std::string(text.substr(0, end)) : std::string(csv_start) + "\n", row_start);
}

/// Adds a column for each new name, also to existing rows.
void CsvLog::add_columns(const LogRow& row) {
  const size_t known = columns_.size();
  for (const auto& [name, value] : row.values) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) columns_.push_back(name);
  }
  if (columns_.size() == known) return;
  const std::string before = file_.text(), commas(columns_.size() - known, ',');
  uint64_t head_end = 0;
  take_csv_record(io::CsvReader(io::as_bytes(before), file_.path()), before, head_end);
  std::string_view rest = std::string_view(before).substr(head_end);
  std::string text(csv_start);
  for (const std::string& name : columns_) {
    text += ',';
    io::append_csv_cell(text, name);
  }
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
                      " is not the log of a run: expected objects with a \"step\". Move it to another place.");
    if (!row || row->step > last_step) break;
    last_ = *row;
    row_start = std::exchange(begin, end + 1);
  }
  TORCH_CHECK_VALUE(begin > 0 || text.empty() || text.starts_with("{\"step\""), "log: ", path,
                    " is not the log of a run: expected objects with a \"step\". Move it to another place.");
  file_.replace(std::string_view(text).substr(0, begin), row_start);
}

void JsonLog::write(const LogRow& row) {
  file_.write(json_line(row), row.step == last_.step);
  last_ = row;
}

// ---- RunLog

namespace {

std::string time_of_day() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

void check_names(const NamedValues& values) {
  for (const auto& [name, value] : values) {
    TORCH_CHECK_VALUE(
        !name.empty() && name != "step" && name != "seconds" && name != "time",
        "RunLog: the names step, seconds and time are reserved, because every row has them. Got the name \"", name,
        "\".");
  }
}

/// Returns the values that `row` does not already contain, because event files keep every value.
NamedValues not_in(const NamedValues& row, const NamedValues& values) {
  NamedValues result;
  for (const auto& value : values) {
    if (std::find(row.begin(), row.end(), value) == row.end()) result.push_back(value);
  }
  return result;
}

/// The keys and values of a recipe for the HPARAMS tab, without the run folder.
std::vector<std::pair<std::string, io::HyperParameter>> hyper_parameters_of(const Recipe& recipe) {
  std::vector<std::pair<std::string, io::HyperParameter>> result;
  const YAML::Node values = YAML::Load(recipe.to_yaml());
  for (const RecipeField& field : recipe_fields()) {
    const YAML::Node value = values[field.name];
    if (field.name == "run_folder" || !value) continue;
    if (field.type == "true or false") {
      result.emplace_back(field.name, value.as<bool>());
    } else if (field.type == "text") {
      result.emplace_back(field.name, value.as<std::string>());
    } else {
      result.emplace_back(field.name, value.as<double>());
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> parse_log_kinds(std::string_view text) {
  static const std::vector<std::string> known{"csv", "json", "tensorboard"};
  std::vector<std::string> kinds;
  std::string word;
  const auto take_word = [&] {
    if (word.empty()) return;
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), word) != known.end(),
                      "log: expected a list of csv, json and tensorboard, got \"", word, "\".",
                      did_you_mean(word, known));
    TORCH_CHECK_VALUE(std::find(kinds.begin(), kinds.end(), word) == kinds.end(), "log: \"", word,
                      "\" is listed twice.");
    kinds.push_back(std::exchange(word, ""));
  };
  for (const char c : text) {
    if (c == ',' || c == ' ') {
      take_word();
    } else {
      word += c;
    }
  }
  take_word();
  return kinds;
}

struct RunLog::State {
  State(const std::vector<std::string>& kinds, const std::string& folder, int64_t last_step) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    TORCH_CHECK(!error, "log: cannot create the folder ", folder, ": ", errno_message(error.value()), ".");
    const std::filesystem::path in(folder);
    for (const std::string& kind : kinds) {
      if (kind == "csv") csv.emplace(in / "log.csv", last_step);
      if (kind == "json") json.emplace(in / "log.jsonl", last_step);
      if (kind == "tensorboard") events.emplace(folder, io::EventWriterOptions{.purge_step = last_step + 1});
    }
    if (csv) row = csv->last();
    if (json && json->last().step >= row.step) row = json->last();
    seconds_before = row.seconds;
  }

  /// Logs must not end a run: if writing fails, it is reported once and the log is closed.
  template <class Log, class Action>
  static void attempt(std::optional<Log>& log, const Action& action) {
    if (!log) return;
    try {
      action(*log);
    } catch (const c10::ValueError&) {
      throw;  // an error in the caller's arguments
    } catch (const std::exception& error) {
      log_warn("log: ", user_message(error), " This log ends here, but the run continues.");
      log.reset();
    }
  }

  double seconds() const { return seconds_before + std::chrono::duration<double>(SteadyClock::now() - start).count(); }

  std::optional<CsvLog> csv;
  std::optional<JsonLog> json;
  std::optional<io::EventWriter> events;
  LogRow row;
  double seconds_before = 0;
  SteadyClock::time_point start = SteadyClock::now();
};

RunLog::RunLog(std::string_view kinds, const std::string& folder, int64_t last_step) {
  const std::vector<std::string> wanted = parse_log_kinds(kinds);
  if (!wanted.empty() && !folder.empty()) state_ = std::make_unique<State>(wanted, folder, last_step);
}

RunLog::~RunLog() = default;

void RunLog::step(int64_t step, const NamedValues& values) {
  if (!state_) return;
  check_names(values);
  LogRow& row = state_->row;
  TORCH_CHECK_VALUE(step >= std::max<int64_t>(row.step, 0), "RunLog: step ", step, " follows step ", row.step,
                    ", which is already logged. Log steps in ascending order.");
  if (step != row.step) row = {step, state_->seconds(), time_of_day(), {}};
  const NamedValues fresh = not_in(row.values, values);
  row.merge(values);
  // Events first: if the process is killed in between, a resume finds the row without these values and adds them again.
  State::attempt(state_->events, [&](io::EventWriter& events) {
    for (const auto& [name, value] : fresh) events.scalar(name, value, step);
    events.flush();
  });
  State::attempt(state_->csv, [&](CsvLog& log) { log.write(row); });
  State::attempt(state_->json, [&](JsonLog& log) { log.write(row); });
}

void RunLog::epoch(const EpochRecord& record) {
  if (!state_) return;
  NamedValues values{{"epoch", static_cast<double>(record.epoch)}, {"train_loss", record.train_loss}};
  if (!std::isnan(record.train_accuracy)) values.emplace_back("train_accuracy", record.train_accuracy);
  if (record.eval_seconds > 0) {
    values.emplace_back("eval_loss", record.eval_loss);
    if (!std::isnan(record.eval_accuracy)) values.emplace_back("eval_accuracy", record.eval_accuracy);
    for (const auto& [name, value] : record.eval_metrics) values.emplace_back("eval_" + name, value);
  }
  values.emplace_back("train_seconds", record.train_seconds);
  if (record.eval_seconds > 0) values.emplace_back("eval_seconds", record.eval_seconds);
  step(record.steps, values);
}

void RunLog::text(std::string_view name, std::string_view text, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) { events.text(name, text, step); });
}

void RunLog::image(std::string_view name, const at::Tensor& image, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) { events.image(name, image, step); });
}

void RunLog::histogram(std::string_view name, const at::Tensor& values, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) { events.histogram(name, values, step); });
}

void RunLog::histograms(const Model& model, int64_t step) {
  if (!state_ || !state_->events) return;
  for (const auto& [name, parameter] : model.named_parameters()) {
    histogram(name, parameter, step);
    if (parameter.grad().defined()) histogram(name + ".grad", parameter.grad(), step);
  }
}

void RunLog::hyperparameters(const Recipe& recipe, const NamedValues& metrics, int64_t step) {
  if (!state_) return;
  State::attempt(state_->events, [&](io::EventWriter& events) {
    std::vector<std::string> tags;
    for (const auto& [name, value] : metrics) {
      tags.push_back("final/" + name);
      events.scalar(tags.back(), value, step);
    }
    events.hyperparameters(hyper_parameters_of(recipe), tags);
    events.end_session();
  });
}

void RunLog::flush() {
  if (!state_) return;
  State::attempt(state_->events, [](io::EventWriter& events) { events.flush(); });
}

}  // namespace bellows::train
