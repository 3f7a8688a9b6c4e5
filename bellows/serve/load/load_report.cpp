#include "bellows/serve/load/load_report.h"

#include <nlohmann/json.hpp>

#include "bellows/report/json_text.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

ordered_json latency_json(const LatencySummary& latency) {
  return {{"count", latency.count}, {"mean_s", latency.mean_s}, {"p50_s", latency.p50_s}, {"p90_s", latency.p90_s},
          {"p95_s", latency.p95_s}, {"p99_s", latency.p99_s},   {"max_s", latency.max_s}};
}

ordered_json level_json(const LevelResult& result) {
  ordered_json json;
  if (result.level.concurrency > 0)
    json["concurrency"] = result.level.concurrency;
  else
    json["rate"] = result.level.rate;
  json.update({{"stable", result.stable},
               {"seconds", result.seconds},
               {"requests", result.requests},
               {"failed", result.failed},
               {"requests_per_s", result.requests_per_s},
               {"samples_per_s", result.samples_per_s},
               {"latency", latency_json(result.latency)},
               {"errors", result.errors},
               {"first_error", result.first_error},
               {"window_rates", result.window_rates}});
  if (result.server) {
    json["server"] = {{"requests", result.server->requests},         {"queue_s", result.server->queue_s},
                      {"compute_input_s", result.server->input_s},   {"compute_infer_s", result.server->compute_s},
                      {"compute_output_s", result.server->output_s}, {"batch_size", result.server->batch_size}};
  }
  json["client"] = {
      {"cpu_s_per_request", result.client_s}, {"cpu_share", result.client_share}, {"delay_p99_s", result.delay_p99_s}};
  return json;
}

}  // namespace

std::string load_report_json(const LoadReport& report) {
  ordered_json json = {{"url", report.url},
                       {"model", report.model},
                       {"version", report.version},
                       {"server", report.server},
                       {"inputs", report.inputs},
                       {"rows_per_request", report.rows},
                       {"request_bytes", report.request_bytes}};
  json["levels"] = ordered_json::array();
  for (const LevelResult& result : report.levels) json["levels"].push_back(level_json(result));
  return json_text(json, 2) + "\n";
}

}  // namespace bellows::serve
