#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/core/stats.h"
#include "bellows/data/convert/convert.h"
#include "bellows/data/select/subset.h"
#include "bellows/system/stop.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

using data::ConvertOptions;
using data::ConvertResult;

/// Throws: UsageError if an option is invalid.
ConvertOptions pack_options(const PackArguments& arguments) {
  return usable([&]() -> ConvertOptions {
    data::find_output_format(arguments.format, arguments.destination);
    return {.format = arguments.format,
            .picture = data::parse_recode(arguments.resize, arguments.encode),
            .shard_bytes = static_cast<int64_t>(arguments.shard_bytes),
            .shard_samples = arguments.shard_samples,
            .verify_all = arguments.verify,
            .threads = arguments.threads};
  });
}

/// Throws: UsageError if a file is where a folder is needed, or if the destination is inside the source.
void check_destination(const PackArguments& arguments) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string name = arguments.destination;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  const fs::path source = fs::weakly_canonical(arguments.source, ignored);
  const fs::path destination = fs::weakly_canonical(fs::absolute(name, ignored), ignored);
  const bool is_file = data::find_output_format(arguments.format, arguments.destination).names_file(name);
  for (fs::path at = destination; at.has_relative_path(); at = at.parent_path()) {
    const bool folder = fs::is_directory(at, ignored);
    if (fs::exists(at, ignored) && !folder && (at != destination || !is_file))
      throw UsageError(c10::str("DST: ", at.string(), " is a file. Expected a folder or a new name."));
    if (folder && at == source)
      throw UsageError(c10::str("DST: ", name, " is inside SRC (", arguments.source,
                                ") and would become part of the dataset. Choose a path outside of it."));
  }
}

data::Dataset open_source(const PackArguments& arguments) {
  data::Dataset dataset = data::open(arguments.source, {.split = arguments.split});
  return arguments.select.empty() ? dataset : dataset.subset(data::load_subset(arguments.select));
}

std::string counted(int64_t count, const char* what) {
  return c10::str(count, " ", what, count == 1 ? "" : "s");
}

void print_pack_result(const PackArguments& arguments, const ConvertResult& result) {
  Terminal terminal;
  if (result.stopped) {
    terminal.print("Stopped. The finished parts are preserved. Run the same command again to resume.\n");
    return;
  }
  const double rate = result.seconds > 0 ? static_cast<double>(result.samples - result.kept) / result.seconds : 0;
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(result.files.front(), ignored);
  std::string text = c10::str(counted(result.samples, "sample"), " in ",
                              folder ? "1 folder" : counted(static_cast<int64_t>(result.files.size()), "file"), " (",
                              format_bytes(static_cast<double>(result.bytes)), "), ", result.format, ", ",
                              format_seconds(result.seconds), ", ", number("%.0f", rate), " samples/s");
  if (result.kept > 0) text += c10::str("; ", counted(result.kept, "sample"), " from an interrupted run");
  const bool all = result.compared == result.samples;
  text += c10::str(".\nAll samples were read back, and ", all ? "all" : std::to_string(result.compared),
                   " of them were compared with the source.\n");
  terminal.print(text + "Dataset: " + arguments.destination + "\n");
}

std::string pack_json(const PackArguments& arguments, const ConvertResult& result) {
  const nlohmann::ordered_json json = {{"source", arguments.source},  {"destination", arguments.destination},
                                       {"format", result.format},     {"files", result.files},
                                       {"samples", result.samples},   {"kept", result.kept},
                                       {"compared", result.compared}, {"bytes", result.bytes},
                                       {"stopped", result.stopped},   {"seconds", result.seconds}};
  return json_text(json);
}

}  // namespace

int run_pack(const PackArguments& arguments) {
  ConvertOptions options = pack_options(arguments);
  check_destination(arguments);
  check_output_file(arguments.json);
  std::atomic<bool> stop{false};
  options.stop = &stop;
  const Interrupt interrupt(
      "finishing the current sample",
      [](void* flag) {
        static_cast<std::atomic<bool>*>(flag)->store(true);
        request_stop();
      },
      &stop);
  const ConvertResult result = data::convert(open_source(arguments), arguments.destination, options);
  if (arguments.json != "-") print_pack_result(arguments, result);
  write_json(arguments.json, pack_json(arguments, result));
  return result.stopped ? Interrupt::exit_code() : exit_done;
}

}  // namespace bellows::cli
