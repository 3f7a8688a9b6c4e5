#include <nlohmann/json.hpp>

#include "bellows/core/file.h"
#include "bellows/data/select/subset.h"
#include "bellows/train/selection.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

int run_select(const SelectArguments& arguments) {
  check_json_target(arguments.json);
  AtomicFile(arguments.out);  // a folder that is not there is found before the work
  const data::Subset subset = train::select_samples({.run = arguments.run,
                                                     .data = arguments.data,
                                                     .split = arguments.split,
                                                     .by = arguments.by,
                                                     .keep = arguments.keep,
                                                     .count = arguments.count,
                                                     .add = arguments.add,
                                                     .per_class = arguments.per_class,
                                                     .passes = arguments.passes,
                                                     .seed = arguments.seed});
  data::save_subset(arguments.out, subset);
  if (arguments.json != "-") {
    Terminal().print(
        c10::str(subset.ids.size(), " of ", subset.of, " samples (", subset.rule, ").\nSubset: ", arguments.out, "\n"));
  }
  const nlohmann::ordered_json json = {{"file", arguments.out},
                                       {"samples", subset.ids.size()},
                                       {"of", subset.of},
                                       {"rule", subset.rule},
                                       {"source", subset.source}};
  write_json(arguments.json, json.dump(2) + "\n");
  return exit_done;
}

}  // namespace bellows::cli
