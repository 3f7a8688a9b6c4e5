#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// A completed event on a timeline.
struct TraceEvent {
  std::string name;
  std::string category;  ///< "op", "data", "step"
  double start_us = 0;   ///< microseconds on the clock of trace_now_us()
  double duration_us = 0;
  uint64_t thread = 0;    ///< row in the viewer; 0: the row of the calling thread
  std::string args_json;  ///< text of a JSON object, or "" for none
};

/// Microseconds on a steady clock that all trace events of a process share.
double trace_now_us();

/// Collects events and writes them as a Chrome trace (chrome://tracing, Perfetto).
/// Threads: add() is safe from any thread
/// Ref: "Trace Event Format", JSON object format, complete events
class TraceWriter {
 public:
  void add(TraceEvent event);
  void name_thread(uint64_t thread, std::string name);
  void name_process(std::string name);
  /// Adds a sample of a numeric series, drawn as a graph: memory, queue length.
  void counter(std::string_view name, double at_us, double value);
  /// Adds all events of another writer.
  void append(const TraceWriter& other);
  size_t size() const;
  /// All events as text, for append() in another process on this machine. Their clocks are the same.
  std::string records() const;
  void append(std::string records);
  std::string to_json() const;
  /// Writes the file atomically.
  /// Throws:   c10::Error if writing fails (the message has the path and the reason)
  void write(const std::string& path) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> records_;
};

}  // namespace bellows
