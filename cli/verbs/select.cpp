#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/data/select/subset.h"
#include "bellows/system/file.h"
#include "bellows/train/data/selection.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

/// Throws: UsageError if an option is invalid.
train::Selection selection_of(const SelectArguments& arguments) {
  train::Selection selection{.run = arguments.run,
                             .data = arguments.data,
                             .split = arguments.split,
                             .by = arguments.by,
                             .keep = arguments.keep,
                             .count = arguments.count,
                             .add = arguments.add,
                             .per_class = arguments.per_class,
                             .passes = arguments.passes,
                             .seed = static_cast<uint64_t>(arguments.seed)};
  usable([&] { train::check_selection(selection); });
  return selection;
}

/// Throws: UsageError if `path` exists and is not a subset file.
void check_replaceable(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  try {
    data::load_subset(path);
  } catch (const c10::Error& error) {
    throw UsageError(c10::str("--out: ", path,
                              " already exists and is not a subset file. Choose another name, or remove the file. (",
                              user_message(error), ")"));
  }
}

}  // namespace

int run_select(const SelectArguments& arguments) {
  const train::Selection selection = selection_of(arguments);
  check_output_file(arguments.json);
  check_replaceable(arguments.out);
  AtomicFile(arguments.out);  // finds a missing folder before the work
  const data::Subset subset = train::select_samples(selection);
  data::save_subset(arguments.out, subset);
  if (arguments.json != "-") {
    Terminal().print(c10::str("Chose ", subset.ids.size(), " of ", subset.of, " samples (", subset.rule,
                              ").\nSubset: ", arguments.out, "\n"));
  }
  const nlohmann::ordered_json json = {{"file", arguments.out},
                                       {"samples", subset.ids.size()},
                                       {"of", subset.of},
                                       {"rule", subset.rule},
                                       {"source", subset.source}};
  write_json(arguments.json, json_text(json));
  return exit_done;
}

}  // namespace bellows::cli
