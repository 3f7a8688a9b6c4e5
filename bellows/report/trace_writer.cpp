#include "bellows/report/trace_writer.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>

#include "bellows/report/json_text.h"
#include "bellows/system/file.h"

namespace bellows {

namespace {

/// Small, stable thread numbers, by which the viewer sorts rows.
uint64_t trace_thread_number() {
  static std::atomic<uint64_t> next{1};
  static thread_local const uint64_t mine = next++;
  return mine;
}

}  // namespace

double trace_now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void TraceWriter::add(TraceEvent event) {
  nlohmann::json record = {{"ph", "X"},
                           {"name", std::move(event.name)},
                           {"cat", std::move(event.category)},
                           {"ts", event.start_us},
                           {"dur", event.duration_us},
                           {"pid", ::getpid()},
                           {"tid", event.thread ? event.thread : trace_thread_number()}};
  if (!event.args_json.empty()) record["args"] = nlohmann::json::parse(event.args_json);
  MutexLock lock(mutex_);
  records_.push_back(json_text(record));
}

void TraceWriter::name_thread(uint64_t thread, std::string name) {
  const nlohmann::json record = {{"ph", "M"},
                                 {"name", "thread_name"},
                                 {"pid", ::getpid()},
                                 {"tid", thread},
                                 {"args", {{"name", std::move(name)}}}};
  MutexLock lock(mutex_);
  records_.push_back(json_text(record));
}

void TraceWriter::name_process(std::string name) {
  const nlohmann::json record = {
      {"ph", "M"}, {"name", "process_name"}, {"pid", ::getpid()}, {"args", {{"name", std::move(name)}}}};
  MutexLock lock(mutex_);
  records_.push_back(json_text(record));
}

void TraceWriter::counter(std::string_view name, double at_us, double value) {
  const nlohmann::json record = {
      {"ph", "C"}, {"name", name}, {"pid", ::getpid()}, {"ts", at_us}, {"args", {{"value", value}}}};
  MutexLock lock(mutex_);
  records_.push_back(json_text(record));
}

void TraceWriter::append(const TraceWriter& other) {
  std::vector<std::string> added;
  {
    MutexLock lock(other.mutex_);
    added = other.records_;
  }
  MutexLock lock(mutex_);
  records_.insert(records_.end(), std::make_move_iterator(added.begin()), std::make_move_iterator(added.end()));
}

size_t TraceWriter::size() const {
  MutexLock lock(mutex_);
  return records_.size();
}

std::string TraceWriter::records() const {
  MutexLock lock(mutex_);
  std::string text;
  for (const std::string& record : records_) text += (text.empty() ? "" : ",\n") + record;
  return text;
}

void TraceWriter::append(std::string records) {
  if (records.empty()) return;
  MutexLock lock(mutex_);
  records_.push_back(std::move(records));
}

std::string TraceWriter::to_json() const {
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + records() + "\n]}\n";
}

void TraceWriter::write(const std::string& path) const {
  write_text_file(path, to_json());
}

}  // namespace bellows
