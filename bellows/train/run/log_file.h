#pragma once

// The two logs of rows that a RunLog writes. Rows are appended; only the last one can still change.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/train/run/run_log.h"

namespace bellows::train {

/// Everything that is known of one step.
struct LogRow {
  int64_t step = -1;   ///< negative: none yet
  double seconds = 0;  ///< since the run's start
  std::string time;    ///< of day, UTC: "2026-11-21T22:00:00Z"
  NamedValues values;

  /// Adds the values; one of a name that is there replaces it.
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
  /// All that stands there; "" when there is no file.
  std::string text() const;
  /// Puts `text` in the place of all of it, atomically.
  /// Params: last_row – where in it the last row begins
  void replace(std::string_view text, size_t last_row);
  /// Writes a row behind the others, or over the last one.
  void write(std::string_view line, bool over_last);

 private:
  std::string path_;
  int fd_ = -1;
  size_t last_row_ = 0, size_ = 0;
};

/// `log.csv`.
class CsvLog {
 public:
  /// Cuts the rows behind `last_step`; negative: all.
  /// Throws: c10::ValueError – the file is no log of a run; c10::Error – cannot be written
  CsvLog(const std::string& path, int64_t last_step);
  /// The last row that stands there.
  const LogRow& last() const { return last_; }
  /// Writes the row, over the last one if that is of the same step.
  void write(const LogRow& row);

 private:
  void read(std::string_view text, int64_t last_step);
  void add_columns(const LogRow& row);
  std::string line_of(const LogRow& row) const;

  RowFile file_;
  std::vector<std::string> columns_;  ///< behind step, seconds, time
  LogRow last_;
};

/// `log.jsonl`; members as CsvLog's.
class JsonLog {
 public:
  JsonLog(const std::string& path, int64_t last_step);
  const LogRow& last() const { return last_; }
  void write(const LogRow& row);

 private:
  RowFile file_;
  LogRow last_;
};

}  // namespace bellows::train
