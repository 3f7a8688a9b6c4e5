#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bellows/core/log.h"

namespace bellows {

/// Keeps what the library says while it lives.
class CapturedLog {
 public:
  CapturedLog() : sink_(std::make_shared<Sink>()), before_(set_log_sink(sink_)) {}
  ~CapturedLog() { set_log_sink(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  const std::string& text() const { return sink_->text; }

 private:
  struct Sink final : LogSink {
    void write(LogLevel, std::string_view message) override { (text += message) += "\n"; }
    std::string text;
  };
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<LogSink> before_;
};

}  // namespace bellows
