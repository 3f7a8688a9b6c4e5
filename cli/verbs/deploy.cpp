#include <c10/util/Exception.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "bellows/core/stats.h"
#include "bellows/serve/server.h"
#include "bellows/system/file.h"
#include "cli/deploy/deployment.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// A folder next to the target, which is deleted unless it is renamed to the target.
class Staging {
 public:
  explicit Staging(const std::string& target) : target_(fs::absolute(target).lexically_normal()) {
    if (!target_.has_filename()) target_ = target_.parent_path();
    if (fs::exists(target_))
      throw UsageError("--target: " + target + " exists already. Delete it, or choose another folder.");
    fs::create_directories(target_.parent_path());
    std::string name = target_.string() + ".partial-XXXXXX";
    TORCH_CHECK(mkdtemp(name.data()), "cannot create a folder in ", target_.parent_path().string());
    path_ = name;
    fs::create_directories(repository());
    fs::permissions(repository(), static_cast<fs::perms>(0755));
  }
  ~Staging() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::string candidates() const { return (path_ / "candidates").string(); }
  std::string repository() const { return (path_ / "repository").string(); }
  void finish() const { fs::rename(repository(), target_); }

 private:
  fs::path target_, path_{};
};

std::string title(const DeployRow& row) {
  if (row.file.format.empty()) return row.measured.backend;
  return row.file.dtype + " " + row.file.format + (row.measured.backend.empty() ? "" : ", " + row.measured.backend);
}

std::string row_text(const Deployment& result, size_t index) {
  const DeployRow& row = result.rows[index];
  const bool measured = !row.measured.calls.empty();
  std::string text = pad_right(index == result.chosen ? "> "
                               : row.accepted         ? "  "
                                                      : "x ",
                               2) +
                     pad_right(title(row), 28);
  text += pad_left(measured ? number("%.3f", 1e3 * row.measured.median_s) : "-", 10) +
          pad_left(measured ? number("%.1f", row.measured.throughput) : "-", 11) +
          pad_left(row.measured.difference ? number("%.1e", row.measured.difference->relative)
                   : measured              ? "expected"
                                           : "-",
                   12);
  if (std::isfinite(result.accuracy))
    text += pad_left(std::isfinite(row.accuracy) ? number("%.2f %%", 100 * row.accuracy) : "-", 10);
  return text + "\n";
}

std::string report_text(const Deployment& result) {
  const bool accuracy = std::isfinite(result.accuracy);
  std::string text = pad_right("", 30) + pad_left("median ms", 10) + pad_left("samples/s", 11) +
                     pad_left("difference", 12) + (accuracy ? pad_left("accuracy", 10) : "") + "\n";
  for (size_t i = 0; i < result.rows.size(); ++i) text += row_text(result, i);
  text += "\n";
  text += wrapped("> is deployed: the fastest within the limits. x is not accepted.");
  for (const DeployRow& row : result.rows)
    if (!row.reason.empty()) text += wrapped("x " + title(row) + ": " + one_line(row.reason) + ".");
  text += "\nFiles to ship:\n" + pad_right("", 28) + pad_left("command", 12) + pad_left("libraries", 12) +
          pad_left("model", 12) + pad_left("total", 12) + "\n";
  for (const ImageSize& image : result.images) {
    const auto size = [](uint64_t bytes) { return pad_left(format_bytes(static_cast<double>(bytes)), 12); };
    text += pad_right(image.dtype + " " + image.format + (image.dtype.empty() ? "" : ", ") + image.backend, 28) +
            size(image.command) + size(image.libraries + image.backend_libraries) + size(image.model) +
            size(image.total()) + "\n";
  }
  text += "\n";
  text += wrapped("The server answers requests of one client in " + number("%.3f", 1e3 * result.http_p50_s) +
                  " ms (median).");
  text += wrapped("To serve the model, run: bellows serve --model-repository " + shell_word(result.target));
  return text;
}

ordered_json report_json(const Deployment& result) {
  ordered_json rows = ordered_json::array(), images = ordered_json::array();
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const DeployRow& row = result.rows[i];
    ordered_json json = {{"dtype", row.file.dtype},
                         {"format", row.file.format},
                         {"backend", row.measured.backend},
                         {"version", row.measured.version},
                         {"accepted", row.accepted},
                         {"deployed", i == result.chosen},
                         {"reason", row.reason},
                         {"model_bytes", row.model_bytes}};
    if (!row.measured.calls.empty()) {
      json.update(
          {{"median_s", row.measured.median_s},
           {"p90_s", row.measured.p90_s},
           {"spread", row.measured.spread},
           {"samples_per_s", row.measured.throughput},
           {"difference", row.measured.difference ? number_or_null<ordered_json>(row.measured.difference->relative)
                                                  : ordered_json(nullptr)},
           {"accuracy", number_or_null<ordered_json>(row.accuracy)}});
    }
    rows.push_back(std::move(json));
  }
  for (const ImageSize& image : result.images)
    images.push_back({{"dtype", image.dtype},
                      {"format", image.format},
                      {"backend", image.backend},
                      {"command_bytes", image.command},
                      {"library_bytes", image.libraries + image.backend_libraries},
                      {"model_bytes", image.model},
                      {"total_bytes", image.total()}});
  return {
      {"model", result.name}, {"target", result.target}, {"accuracy", number_or_null<ordered_json>(result.accuracy)},
      {"candidates", rows},   {"images", images},        {"http_p50_s", result.http_p50_s}};
}

}  // namespace

int run_deploy(const DeployArguments& arguments) {
  if (const std::string missing = serve::Server::missing(); !missing.empty()) {
    print_error(missing);
    return exit_failed;
  }
  check_output_file(arguments.json);
  if (arguments.name.find_first_of("/\\\"") != std::string::npos || arguments.name.starts_with("."))
    throw UsageError("--name: expected the name of a folder, got \"" + arguments.name + "\".");
  const Staging staging(arguments.target);
  Terminal terminal;
  const Interrupt interrupt("nothing is written");
  const auto progress = [&terminal](const std::string& text) {
    const size_t comma = text.find(", round ");
    terminal.status(text.substr(0, comma), comma == std::string::npos ? "" : text.substr(comma + 2));
  };
  const Candidates candidates = make_candidates(arguments, staging.candidates());
  if (Interrupt::requested()) return Interrupt::exit_code();
  Deployment result = measure_candidates(candidates, arguments, progress);
  if (Interrupt::requested()) return Interrupt::exit_code();
  write_repository(result, arguments, staging.repository());
  progress("Testing the model repository in the server");
  result.http_p50_s = try_repository(result, candidates.inputs, staging.repository());
  if (Interrupt::requested()) return Interrupt::exit_code();
  write_text_file(staging.repository() + "/deploy.json", json_text(report_json(result)));
  staging.finish();
  if (arguments.json != "-") terminal.print(report_text(result));
  write_json(arguments.json, json_text(report_json(result)));
  return exit_done;
}

}  // namespace bellows::cli
