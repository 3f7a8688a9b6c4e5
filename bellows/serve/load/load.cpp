#include "bellows/serve/load/load.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bellows/serve/load/level_run_impl.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

constexpr int64_t most_connections = 65536;

void check(const LoadOptions& options) {
  TORCH_CHECK_VALUE(!options.model.empty(), "`model` must not be empty.");
  TORCH_CHECK_VALUE(!options.levels.empty(), "`levels` must not be empty.");
  for (const LoadLevel& level : options.levels) {
    const bool closed = level.concurrency > 0 && level.concurrency <= most_connections && level.rate == 0;
    const bool open = level.concurrency == 0 && std::isfinite(level.rate) && level.rate > 0;
    TORCH_CHECK_VALUE(closed || open, "a level must have a `concurrency` from 1 to ", most_connections,
                      ", or a `rate` above 0, got concurrency ", level.concurrency, " and rate ", level.rate, ".");
  }
  TORCH_CHECK_VALUE(options.connections > 0, "`connections` must be at least 1, got ", options.connections, ".");
  TORCH_CHECK_VALUE(options.batch_size > 0, "`batch_size` must be at least 1, got ", options.batch_size, ".");
  TORCH_CHECK_VALUE(options.vocabulary > 0, "`vocabulary` must be at least 1, got ", options.vocabulary, ".");
  TORCH_CHECK_VALUE(options.window_s > 0 && options.timeout_s > 0 && options.warmup_s >= 0,
                    "`window_s` and `timeout_s` must be above 0, and `warmup_s` must not be negative.");
  TORCH_CHECK_VALUE(options.max_windows > 0, "`max_windows` must be at least 1, got ", options.max_windows, ".");
}

std::string step_text(const LoadLevel& level, size_t number, size_t count) {
  char text[96];
  if (level.concurrency > 0)
    std::snprintf(text, sizeof text, "concurrency %lld", static_cast<long long>(level.concurrency));
  else
    std::snprintf(text, sizeof text, "%g requests/s", level.rate);
  return std::string(text) + " (" + std::to_string(number + 1) + " of " + std::to_string(count) + ")";
}

std::string inputs_text(const LoadRequest& request) {
  std::string text;
  for (const LoadTensor& tensor : request)
    text += (text.empty() ? "" : ", ") + tensor.name + " " + tensor.datatype + " " + shape_text(tensor.shape);
  return text;
}

/// Sends one request, so that errors of the request appear before the measurement. Returns the body of the answer.
std::string try_once(LoadTransport& transport) {
  std::string body;
  const LoadAnswer answer = transport.ask(0, body);
  // An overloaded server is worth measuring, but a request that it rejects is not.
  TORCH_CHECK_VALUE(answer.ok || answer.error == "503", "the server does not accept the request: ", answer.error,
                    answer.message.empty() ? "" : ": ", answer.message);
  return body;
}

}  // namespace

LoadReport measure_load(const LoadOptions& options) {
  check(options);
  const auto transport = http_transport(options);
  LoadReport report{.url = options.url, .model = options.model, .server = transport->server()};
  const LoadMetadata metadata = transport->metadata();
  const std::vector<LoadRequest> requests = make_requests(metadata, options);
  report.version = options.version.empty() ? metadata.version : options.version;
  report.inputs = inputs_text(requests.front());
  const bool batched = metadata.inputs[0].shape.size() == requests.front()[0].shape.size() &&
                       !metadata.inputs[0].shape.empty() && metadata.inputs[0].shape[0] < 0;
  report.rows = batched ? requests.front()[0].shape[0] : 1;
  report.request_bytes = transport->prepare(requests);
  report.first_answer = try_once(*transport);
  for (size_t i = 0; i < options.levels.size(); ++i) {
    if (options.stop && options.stop()) break;
    LevelRun run(*transport, options, options.levels[i], requests.size(),
                 step_text(options.levels[i], i, options.levels.size()));
    report.levels.push_back(run.run());
    report.levels.back().samples_per_s = report.levels.back().requests_per_s * static_cast<double>(report.rows);
  }
  return report;
}

}  // namespace bellows::serve
