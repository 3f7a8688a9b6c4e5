#include "bellows/serve/statistics.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/report/json_text.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

ordered_json sum_json(const DurationSum& sum) {
  return {{"count", sum.count}, {"ns", sum.ns}};
}

ordered_json model_json(const std::string& name, const std::string& version, const StatisticsValues& values) {
  const DurationSum none{};
  ordered_json json = {{"name", name},
                       {"version", version},
                       {"last_inference", values.last_inference_ms},
                       {"inference_count", values.inferences},
                       {"execution_count", values.executions},
                       {"inference_stats",
                        {{"success", sum_json(values.success)},
                         {"fail", sum_json(values.fail)},
                         {"queue", sum_json(values.queue)},
                         {"compute_input", sum_json(values.compute_input)},
                         {"compute_infer", sum_json(values.compute_infer)},
                         {"compute_output", sum_json(values.compute_output)},
                         {"cache_hit", sum_json(none)},
                         {"cache_miss", sum_json(none)}}},
                       {"batch_stats", ordered_json::array()}};
  for (const auto& [rows, batch] : values.batches)
    json["batch_stats"].push_back({{"batch_size", rows},
                                   {"compute_input", sum_json(batch.compute_input)},
                                   {"compute_infer", sum_json(batch.compute_infer)},
                                   {"compute_output", sum_json(batch.compute_output)}});
  return json;
}

/// Quotation marks, backslashes and line breaks of label values are escaped.
std::string label_text(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  uint64_t (*value)(const StatisticsValues&);
};

constexpr uint64_t ns_per_us = 1000;

constexpr Metric metrics[] = {
    {"nv_inference_request_success", "counter", "Number of successful inference requests",
     [](const StatisticsValues& v) { return v.success.count; }},
    {"nv_inference_count", "counter", "Number of inferences performed (a batch of n counts as n)",
     [](const StatisticsValues& v) { return v.inferences; }},
    {"nv_inference_exec_count", "counter", "Number of model executions",
     [](const StatisticsValues& v) { return v.executions; }},
    {"nv_inference_pending_request_count", "gauge", "Number of requests that wait for execution",
     [](const StatisticsValues& v) { return v.pending; }},
    {"nv_inference_request_duration_us", "counter", "Cumulative duration of inference requests in microseconds",
     [](const StatisticsValues& v) { return v.success.ns / ns_per_us; }},
    {"nv_inference_queue_duration_us", "counter", "Cumulative time of requests in the queue in microseconds",
     [](const StatisticsValues& v) { return v.queue.ns / ns_per_us; }},
    {"nv_inference_compute_input_duration_us", "counter", "Cumulative time for inputs in microseconds",
     [](const StatisticsValues& v) { return v.compute_input.ns / ns_per_us; }},
    {"nv_inference_compute_infer_duration_us", "counter", "Cumulative time of the model in microseconds",
     [](const StatisticsValues& v) { return v.compute_infer.ns / ns_per_us; }},
    {"nv_inference_compute_output_duration_us", "counter", "Cumulative time for outputs in microseconds",
     [](const StatisticsValues& v) { return v.compute_output.ns / ns_per_us; }},
};

constexpr const char* reason_names[failure_reasons] = {"REJECTED", "CANCELED", "BACKEND", "OTHER"};

void append_head(std::string& text, const char* name, const char* type, const char* help) {
  text.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ");
  text.append(name).append(" ").append(type).append("\n");
}

constexpr double first_bound_us = 10, bounds_per_octave = 4;

}  // namespace

void LatencyCounts::add(Clock::duration duration) {
  const double us = std::chrono::duration<double, std::micro>(duration).count();
  const double place = us <= first_bound_us ? 0 : std::ceil(std::log2(us / first_bound_us) * bounds_per_octave);
  ++counts[static_cast<size_t>(std::min(place, double{buckets - 1}))];
}

double LatencyCounts::bound_us(size_t bucket) {
  return first_bound_us * std::exp2(static_cast<double>(bucket) / bounds_per_octave);
}

void ModelStatistics::add_success(const RequestTimes& times, int64_t rows) {
  using std::chrono::system_clock;
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(system_clock::now().time_since_epoch());
  const MutexLock lock(mutex_);
  values_.inferences += static_cast<uint64_t>(rows);
  values_.last_inference_ms = static_cast<uint64_t>(now.count());
  values_.success.add(times.done - times.received);
  values_.latency.add(times.done - times.received);
  values_.queue.add(times.taken - times.queued);
  values_.compute_input.add(times.inputs_ready - times.taken);
  values_.compute_infer.add(times.computed - times.inputs_ready);
  values_.compute_output.add(times.done - times.computed);
}

void ModelStatistics::add_failure(FailureReason reason, Clock::duration duration) {
  const MutexLock lock(mutex_);
  ++values_.failures[static_cast<size_t>(reason)];
  values_.fail.add(duration);
}

void ModelStatistics::add_execution(int64_t rows, Clock::duration input, Clock::duration infer,
                                    Clock::duration output) {
  const MutexLock lock(mutex_);
  ++values_.executions;
  StatisticsValues::Batch& batch = values_.batches[rows];
  batch.compute_input.add(input);
  batch.compute_infer.add(infer);
  batch.compute_output.add(output);
}

void ModelStatistics::set_pending(uint64_t requests) {
  const MutexLock lock(mutex_);
  values_.pending = requests;
}

StatisticsValues ModelStatistics::values() const {
  const MutexLock lock(mutex_);
  return values_;
}

std::string statistics_json(const AllStatistics& models) {
  ordered_json json = {{"model_stats", ordered_json::array()}};
  for (const auto& [key, statistics] : models)
    json["model_stats"].push_back(model_json(key.first, key.second, statistics->values()));
  return json_text(json);
}

std::string prometheus_text(const AllStatistics& models, const ServerValues& server) {
  std::vector<std::pair<std::string, StatisticsValues>> rows;
  for (const auto& [key, statistics] : models)
    rows.emplace_back("model=\"" + label_text(key.first) + "\",version=\"" + label_text(key.second) + "\"",
                      statistics->values());
  std::string text;
  for (const Metric& metric : metrics) {
    append_head(text, metric.name, metric.type, metric.help);
    for (const auto& [labels, values] : rows)
      text += std::string(metric.name) + "{" + labels + "} " + std::to_string(metric.value(values)) + "\n";
  }
  append_head(text, "nv_inference_request_failure", "counter", "Number of failed inference requests");
  for (const auto& [labels, values] : rows) {
    for (size_t i = 0; i < failure_reasons; ++i)
      text += "nv_inference_request_failure{" + labels + ",reason=\"" + reason_names[i] + "\"} " +
              std::to_string(values.failures[i]) + "\n";
  }
  append_head(text, "bellows_http_connections", "gauge", "Number of open HTTP connections");
  return text + "bellows_http_connections " + std::to_string(server.connections) + "\n";
}

}  // namespace bellows::serve
