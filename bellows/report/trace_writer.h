#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// One finished piece of work on a time line.
struct TraceEvent {
  std::string name;
  std::string category;  ///< "op", "data", "step"
  double start_us = 0;   ///< microseconds on trace_now_us()'s clock
  double duration_us = 0;
  uint64_t thread = 0;    ///< row in the viewer; 0: the calling thread's own
  std::string args_json;  ///< an object's text, or "" for none
};

/// Microseconds on a steady clock that all of a process's trace events share.
double trace_now_us();

/// Collects events and writes them as a Chrome trace (chrome://tracing, Perfetto).
/// Threads: add() is safe from any thread.
/// Ref: "Trace Event Format", JSON object format, complete events
class TraceWriter {
 public:
  void add(TraceEvent event);
  void name_thread(uint64_t thread, std::string name);
  void name_process(std::string name);
  /// A numeric series, drawn as a graph: memory, queue length.
  void counter(std::string_view name, double at_us, double value);
  /// Adds what another one holds.
  void append(const TraceWriter& other);
  size_t size() const;
  /// All of it as text, for append() in another process of this machine: their clocks are one.
  std::string records() const;
  void append(std::string records);
  std::string to_json() const;
  /// Atomic: the file is whole or as it was before.
  /// Throws:   c10::Error – the path and why
  void write(const std::string& path) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> records_;
};

}  // namespace bellows
