#pragma once

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace bellows {

enum class LogLevel { debug, info, warn, error, off };

/// One state of a long piece of work, as a LogSink gets it.
struct ProgressState {
  std::string_view label;   ///< what is being done: "epoch 3"
  int64_t done = 0;         ///< units finished
  int64_t total = 0;        ///< units in all; 0 when unknown
  std::string_view unit;    ///< "samples", "bytes"
  double rate = 0;          ///< units a second, over the whole of this work
  double eta_s = 0;         ///< seconds to the end; negative when unknown
  std::string_view detail;  ///< free text behind the figures: "loss 0.132"
  bool finished = false;
};

/// Where everything that the library has to say goes. The library never prints by itself.
/// Threads: both calls may come from any thread, one at a time.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(LogLevel level, std::string_view message) = 0;
  virtual void progress(const ProgressState&) {}
};

/// Replaces the sink; null silences the library. Returns the sink that was there.
/// The first sink writes to standard error through spdlog: a progress bar on a terminal, a line now and then elsewhere.
std::shared_ptr<LogSink> set_log_sink(std::shared_ptr<LogSink> sink);

/// The sink that is there when a program starts, made anew.
std::shared_ptr<LogSink> make_default_log_sink();

/// Messages below `level` are dropped before they are formatted. Returns the level before. Default: info.
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

/// How many bytes the first `letters` letters take: where a line for a terminal may be cut.
size_t prefix_bytes(std::string_view utf8, size_t letters);

}  // namespace bellows
