#include "bellows/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "bellows/core/mutex.h"

namespace bellows {

namespace {

std::string short_duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return whole < 60 ? fmt::format("{} s", whole) : fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

std::string progress_text(const ProgressState& state, int bar_width) {
  std::string text(state.label);
  if (state.total > 0 && bar_width > 0) {
    const int filled = static_cast<int>(bar_width * std::min(state.done, state.total) / state.total);
    text += " [" + std::string(filled, '#') + std::string(bar_width - filled, '.') + "]";
  }
  text += state.total > 0 ? fmt::format(" {}/{}", state.done, state.total) : fmt::format(" {}", state.done);
  text += fmt::format(" {}, {:.4g}/s", state.unit, state.rate);
  if (!state.finished && state.eta_s >= 0) text += ", " + short_duration(state.eta_s) + " left";
  if (!state.detail.empty()) text += ", " + std::string(state.detail);
  return text;
}

/// Writes to standard error through spdlog. On a terminal, progress is one line that is redrawn; elsewhere, a new line
/// every few seconds.
class StandardErrorSink final : public LogSink {
 public:
  StandardErrorSink() : logger_("bellows", std::make_shared<spdlog::sinks::stderr_color_sink_st>()) {
    logger_.set_pattern("%^%l%$: %v");
    logger_.set_level(spdlog::level::trace);
    logger_.flush_on(spdlog::level::trace);
  }

  void write(LogLevel level, std::string_view message) override {
    clear_line();
    // Info messages need no prefix.
    static constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info,
                                                           spdlog::level::warn, spdlog::level::err, spdlog::level::off};
    logger_.set_pattern(level == LogLevel::info ? "%v" : "%^%l%$: %v");
    logger_.log(levels[static_cast<int>(level)], spdlog::string_view_t(message.data(), message.size()));
  }

  void progress(const ProgressState& state) override {
    if (terminal_) {
      draw(state);
    } else if (state.finished || Clock::now() - last_line_ > std::chrono::seconds(10)) {
      last_line_ = Clock::now();
      write(LogLevel::info, progress_text(state, 0));
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  void draw(const ProgressState& state) {
    winsize size{};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const size_t columns = known ? size.ws_col : 80;
    std::string text = progress_text(state, 20);
    if (text.size() >= columns) text = progress_text(state, 0);
    text.resize(prefix_bytes(text, columns - 1));
    std::fprintf(stderr, "\r\033[K%s%s", text.c_str(), state.finished ? "\n" : "");
    std::fflush(stderr);
    line_open_ = !state.finished;
  }

  void clear_line() {
    if (!line_open_) return;
    std::fprintf(stderr, "\r\033[K");
    line_open_ = false;
  }

  spdlog::logger logger_;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool line_open_ = false;
  Clock::time_point last_line_ = Clock::now();
};

struct LogState {
  Mutex mutex;
  std::shared_ptr<LogSink> sink BELLOWS_GUARDED_BY(mutex) = std::make_shared<StandardErrorSink>();
  std::atomic<LogLevel> level{LogLevel::info};
};

LogState& log_state() {
  static auto* state = new LogState;  // never destroyed: static destructors may still log
  return *state;
}

}  // namespace

std::shared_ptr<LogSink> make_default_log_sink() {
  return std::make_shared<StandardErrorSink>();
}

std::shared_ptr<LogSink> set_log_sink(std::shared_ptr<LogSink> sink) {
  MutexLock lock(log_state().mutex);
  std::swap(log_state().sink, sink);
  return sink;
}

LogLevel set_log_level(LogLevel level) {
  return log_state().level.exchange(level);
}

bool log_enabled(LogLevel level) {
  return level >= log_state().level.load(std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  MutexLock lock(log_state().mutex);
  if (log_state().sink) log_state().sink->write(level, message);
}

void report_progress(const ProgressState& state) {
  MutexLock lock(log_state().mutex);
  if (log_state().sink) log_state().sink->progress(state);
}

size_t prefix_bytes(std::string_view utf8, size_t letters) {
  size_t bytes = 0;
  while (bytes < utf8.size() && ((utf8[bytes] & 0xC0) == 0x80 || letters-- > 0)) ++bytes;
  return bytes;
}

}  // namespace bellows
