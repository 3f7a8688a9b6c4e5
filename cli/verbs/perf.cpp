#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bellows/report/html.h"
#include "bellows/serve/load/load.h"
#include "bellows/serve/server.h"
#include "bellows/system/file.h"
#include "cli/deploy/arguments.h"
#include "cli/deploy/load_levels.h"
#include "cli/interrupt.h"
#include "cli/option_values.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using serve::LevelResult;
using serve::LoadOptions;
using serve::LoadReport;

constexpr double busy_client = 0.85, late_client_s = 1e-3;

std::vector<serve::LoadLevel> levels_of(const PerfArguments& arguments) {
  std::vector<serve::LoadLevel> levels;
  if (!arguments.rate.empty()) {
    for (const double rate : parse_levels(arguments.rate, "--rate", /*whole=*/false)) levels.push_back({.rate = rate});
    return levels;
  }
  for (const double level : parse_levels(arguments.concurrency, "--concurrency", /*whole=*/true))
    levels.push_back({.concurrency = static_cast<int64_t>(level)});
  return levels;
}

std::pair<std::string, std::vector<int64_t>> shape_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::vector<int64_t> sizes;
  bool valid = colon != std::string::npos && colon > 0;
  for (const std::string& size : split_at(valid ? text.substr(colon + 1) : "", ',')) {
    valid = valid && !size.empty() && size.size() < 18 && size.find_first_not_of("0123456789") == std::string::npos;
    if (valid) sizes.push_back(std::stoll(size));
  }
  if (!valid) throw UsageError("--shape: expected NAME:SIZES, such as ids:1,14, got \"" + text + "\".");
  return {text.substr(0, colon), sizes};
}

std::pair<std::string, std::string> header_of(const std::string& text) {
  const size_t colon = text.find(':');
  const size_t value = text.find_first_not_of(' ', colon == std::string::npos ? colon : colon + 1);
  if (colon == std::string::npos || colon == 0 || value == std::string::npos ||
      text.find_first_of("\r\n") != std::string::npos)
    throw UsageError("--header: expected NAME:VALUE, such as \"Authorization: Bearer TOKEN\".");
  return {text.substr(0, colon), text.substr(value)};
}

LoadOptions options_of(const PerfArguments& arguments, Terminal& terminal) {
  LoadOptions options{.url = arguments.url, .model = arguments.model, .version = arguments.version};
  for (const std::string& header : arguments.headers) options.headers.push_back(header_of(header));
  options.levels = levels_of(arguments);
  options.poisson = arguments.arrivals == "poisson";
  options.connections = arguments.connections;
  options.seed = static_cast<uint64_t>(arguments.seed);
  options.json = arguments.tensors == "json";
  options.batch_size = arguments.batch_size;
  for (const std::string& shape : arguments.shapes) options.shapes.insert(shape_of(shape));
  options.data_file = arguments.data_file;
  options.vocabulary = arguments.vocabulary;
  options.warmup_s = arguments.warmup;
  options.window_s = arguments.window;
  options.stability = arguments.stability / 100;
  options.max_windows = arguments.max_windows;
  options.timeout_s = arguments.timeout;
  options.stop = [] { return Interrupt::requested(); };
  options.progress = [&terminal](const std::string& step, const std::string& state) { terminal.status(step, state); };
  return options;
}

std::string ms(double seconds) {
  return number(seconds >= 1 ? "%.0f" : seconds >= 0.01 ? "%.1f" : "%.3f", 1e3 * seconds);
}

std::string level_text(const LevelResult& row) {
  return row.level.concurrency > 0 ? std::to_string(row.level.concurrency) : number("%g", row.level.rate);
}

std::string line(const LevelResult& row, bool with_server) {
  std::string text = pad_left(level_text(row), 8) + pad_left(number("%.1f", row.requests_per_s), 11);
  for (const double value : {row.latency.p50_s, row.latency.p90_s, row.latency.p95_s, row.latency.p99_s})
    text += pad_left(row.latency.count > 0 ? ms(value) : "-", 9);
  if (with_server) {
    text += row.server ? pad_left(ms(row.server->queue_s), 9) + pad_left(ms(row.server->compute_s), 9) +
                             pad_left(number("%.1f", row.server->batch_size), 7)
                       : pad_left("-", 9) + pad_left("-", 9) + pad_left("-", 7);
  }
  text += pad_left(std::to_string(row.failed), 8);
  return text + (row.stable ? "" : " *") + "\n";
}

std::string errors_text(const LevelResult& row) {
  std::string list;
  for (const auto& [error, count] : row.errors)
    list += (list.empty() ? "" : ", ") + std::to_string(count) + " × " + error;
  return level_text(row) + ": " + list + ". First error: " + row.first_error;
}

/// The notes below the table.
std::string notes(const LoadReport& report) {
  std::string text;
  bool stable = true;
  double cost = 0, share = 0, delay = 0;
  for (const LevelResult& row : report.levels) {
    stable = stable && row.stable;
    cost = cost == 0 ? row.client_s : std::min(cost, row.client_s);
    share = std::max(share, row.client_share);
    delay = std::max(delay, row.delay_p99_s);
    if (!row.errors.empty()) text += wrapped(errors_text(row));
  }
  if (!stable) text += wrapped("* The last three windows were not stable. Use a longer --window, or a lower load.");
  text += wrapped("This client used " + number("%.1f", 1e6 * cost) + " us of CPU time per request and at most " +
                  number("%.0f", 100 * share) + " % of one core.");
  if (share > busy_client)
    text += wrapped("The client was busy most of the time, so the server may be faster than these values.");
  if (delay > late_client_s)
    text += wrapped("Requests started up to " + ms(delay) +
                    " ms (p99) after their intended time. The latencies "
                    "include this time.");
  return text;
}

std::string table(const LoadReport& report) {
  if (report.levels.empty()) return "";
  const bool with_server =
      std::ranges::any_of(report.levels, [](const LevelResult& row) { return row.server.has_value(); });
  const bool closed = report.levels.front().level.concurrency > 0;
  std::string text;
  text += wrapped(report.model + (report.version.empty() ? "" : ", version " + report.version) +
                  (report.server.empty() ? "" : ", on " + report.server) + ". Inputs: " + report.inputs + ".");
  text += "\n" + pad_left(closed ? "requests" : "intended", 8) + pad_left("", 11) + pad_left("latency", 9) +
          pad_left("", 27) + (with_server ? pad_left("server", 9) : "") + "\n" +
          pad_left(closed ? "at once" : "per s", 8) + pad_left("requests/s", 11) + pad_left("p50", 9) +
          pad_left("p90", 9) + pad_left("p95", 9) + pad_left("p99", 9) +
          (with_server ? pad_left("queue", 9) + pad_left("compute", 9) + pad_left("batch", 7) : "") +
          pad_left("failed", 8) + "\n";
  for (const LevelResult& row : report.levels) text += line(row, with_server);
  text += "\n";
  text += wrapped(std::string("Times in ms.") +
                  (report.rows > 1 ? " Each request has " + std::to_string(report.rows) + " samples." : "") +
                  (with_server ? " Queue and compute are the server's mean times, and batch is the mean number of "
                                 "samples per call of the model."
                               : ""));
  return text + notes(report);
}

void write_chart(const std::string& file, const LoadReport& report) {
  if (file.empty()) return;
  const std::string chart = serve::latency_chart(report);
  write_text_file(file, file.ends_with(".html")
                            ? begin_page("Latency of " + report.model, "") + chart + "</main>\n</body>\n</html>\n"
                            : chart);
}

}  // namespace

int run_perf(const PerfArguments& arguments) {
  if (const std::string missing = serve::Server::missing(); !missing.empty()) {
    print_error(missing);
    return exit_failed;
  }
  check_output_file(arguments.json);
  check_output_file(arguments.chart);
  Terminal terminal;
  const LoadOptions options = options_of(arguments, terminal);
  LoadReport report;
  {
    const Interrupt interrupt("printing the results so far");
    report = serve::measure_load(options);
  }
  if (arguments.json != "-") terminal.print(table(report));
  write_json(arguments.json, serve::load_report_json(report));
  write_chart(arguments.chart, report);
  if (Interrupt::requested()) return Interrupt::exit_code();
  const bool failed = std::ranges::any_of(report.levels, [](const LevelResult& row) { return row.requests == 0; });
  return failed ? exit_failed : exit_done;
}

}  // namespace bellows::cli
