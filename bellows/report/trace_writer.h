#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows {

/// A completed event on a timeline.
struct TraceEvent {
  std::string name;
  std::string category;  ///< such as "op", "data" or "step"
  double start_us = 0;   ///< microseconds on the clock of trace_now_us()
  double duration_us = 0;
  uint64_t thread = 0;    ///< row in the viewer; 0: the row of the calling thread
  std::string args_json;  ///< a JSON object as text, or "" for none
};

/// Names of scopes in which a thread waits for other ranks begin with this text, such as "wait: all_reduce".
inline constexpr std::string_view wait_scope_prefix = "wait: ";

/// Returns the time in microseconds on a steady clock that all trace events share.
double trace_now_us();

/// Collects events and writes them as a Chrome trace (chrome://tracing, Perfetto).
/// Threads: add() is thread-safe
/// Ref: "Trace Event Format", JSON object format, complete events
class TraceWriter {
 public:
  void add(TraceEvent event);
  void name_thread(uint64_t thread, std::string name);
  void name_process(std::string name);
  /// Adds a sample of a numeric series, such as memory or queue length. The viewer draws the series as a graph.
  void counter(std::string_view name, double at_us, double value);
  /// Adds all events of another writer.
  void append(const TraceWriter& other);
  size_t size() const;
  /// Returns all events as text. Another process on this machine can pass the text to append(), because both processes
  /// use the same clock.
  std::string records() const;
  void append(std::string records);
  std::string to_json() const;
  /// Writes the file atomically.
  /// Throws:   c10::Error if writing fails (the message has the path and the reason)
  void write(const std::string& path) const;

 private:
  mutable Mutex mutex_;
  std::vector<std::string> records_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace bellows
