#pragma once

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace bellows {

enum class LogLevel { debug, info, warn, error, off };

/// The state of a long task, as passed to a LogSink.
struct ProgressState {
  std::string_view label;   ///< name of the task, such as "epoch 3"
  int64_t done = 0;         ///< number of finished units
  int64_t total = 0;        ///< number of units; 0 if unknown
  std::string_view unit;    ///< name of the units, such as "samples" or "bytes"
  double rate = 0;          ///< units per second since the start of the task
  double eta_s = 0;         ///< seconds until the end; negative if unknown
  std::string_view detail;  ///< text after the figures, such as "loss 0.132"
  bool finished = false;
};

/// Receives all messages and progress reports of the library. The library never prints directly.
/// Threads: write() and progress() may be called from any thread, but never concurrently
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(LogLevel level, std::string_view message) = 0;
  virtual void progress(const ProgressState&) {}
};

/// Replaces the sink and returns the previous one. A null sink silences the library. The default sink writes to
/// standard error through spdlog. On a terminal, it shows the progress of a task in one line that it updates.
/// Otherwise, it prints a line about every ten seconds.
std::shared_ptr<LogSink> set_log_sink(std::shared_ptr<LogSink> sink);

/// Creates a new default sink.
std::shared_ptr<LogSink> make_default_log_sink();

/// Sets the lowest level that is logged and returns the previous level. Messages below this level are dropped before
/// they are formatted. The initial level is info.
LogLevel set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

void log(LogLevel level, std::string_view message);
void report_progress(const ProgressState& state);

template <class... Args>
void log_debug(const Args&... args) {
  if (log_enabled(LogLevel::debug)) log(LogLevel::debug, c10::str(args...));
}
template <class... Args>
void log_info(const Args&... args) {
  if (log_enabled(LogLevel::info)) log(LogLevel::info, c10::str(args...));
}
template <class... Args>
void log_warn(const Args&... args) {
  if (log_enabled(LogLevel::warn)) log(LogLevel::warn, c10::str(args...));
}
template <class... Args>
void log_error(const Args&... args) {
  if (log_enabled(LogLevel::error)) log(LogLevel::error, c10::str(args...));
}

/// Returns the size in bytes of the first `letters` characters of a UTF-8 text. Use this function to truncate a line to
/// the width of a terminal.
size_t prefix_bytes(std::string_view utf8, size_t letters);

}  // namespace bellows
