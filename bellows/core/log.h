#pragma once

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace bellows {

enum class LogLevel { debug, info, warn, error, off };

/// The state of a long task, as a LogSink receives it.
struct ProgressState {
  std::string_view label;   ///< description of the task: "epoch 3"
  int64_t done = 0;         ///< units finished
  int64_t total = 0;        ///< number of units; 0 if unknown
  std::string_view unit;    ///< "samples", "bytes"
  double rate = 0;          ///< units per second since the start of the task
  double eta_s = 0;         ///< seconds until the end; negative if unknown
  std::string_view detail;  ///< free text after the figures: "loss 0.132"
  bool finished = false;
};

/// Receives all messages and progress reports of the library. The library never prints directly.
/// Threads: write() and progress() may be called from any thread, but never concurrently.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(LogLevel level, std::string_view message) = 0;
  virtual void progress(const ProgressState&) {}
};

/// Replaces the sink and returns the previous one; null silences the library. The default sink writes to standard error
/// through spdlog: a progress bar on a terminal, otherwise an occasional line.
std::shared_ptr<LogSink> set_log_sink(std::shared_ptr<LogSink> sink);

/// Creates a new sink like the one that is set when the program starts.
std::shared_ptr<LogSink> make_default_log_sink();

/// Drops messages below `level` before they are formatted, and returns the previous level. Default: info.
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

/// Returns the size in bytes of the first `letters` characters, at which a terminal line can be truncated.
size_t prefix_bytes(std::string_view utf8, size_t letters);

}  // namespace bellows
