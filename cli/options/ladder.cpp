#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

void add_ladder_comparison(CLI::App* verb, LadderArguments& arguments) {
  begin_group(verb, "Comparison");
  verb->add_option("--ranks", arguments.ranks,
                   "Compare DDP, ZeRO and other techniques for this many ranks with one process, which uses the same "
                   "number of cores [default: 1, no comparison]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  verb->add_option("--compare", arguments.compare,
                   "Compare --recipe with these recipe files. Each file contains only the settings that differ. With "
                   ":RANKS, such as ddp.yaml:4, the recipe trains on this many ranks")
      ->type_name("FILE[:RANKS]");
}

}  // namespace bellows::cli
