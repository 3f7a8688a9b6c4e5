#include <CLI/CLI.hpp>

#include "cli/help_texts.h"
#include "cli/job_options.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

CLI::App* add_tune(CLI::App& app, TuneArguments& arguments) {
  CLI::App* verb = app.add_subcommand("tune", "Search for the best values of recipe keys")->footer(tune_footer);
  begin_group(verb, "Search");
  verb->add_option("STUDY", arguments.study, "Study file (YAML) with the recipe, the space and the objective")
      ->required();
  verb->add_option("--trials", arguments.trials, "Number of trials [default: from the study file, otherwise 50]")
      ->type_name("N")
      ->check(whole_number(1, 1000000));
  verb->add_option("--jobs", arguments.jobs, "Number of parallel trials, which share the cores evenly [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  verb->add_option("--seed", arguments.seed, "Seed of the search [default: from the study file, otherwise 1]")
      ->type_name("N")
      ->check(whole_number(0, int64_t{1} << 53));
  add_plugins(verb, arguments.plugins);
  verb->add_flag("--resume", arguments.resume, "Continue the search in --out");
  verb->add_flag("--lr-range", arguments.lr_range,
                 "Run a learning-rate range test and exit. STUDY is then a recipe file");
  begin_group(verb, "Output");
  verb->add_option("--out", arguments.out,
                   "Folder for the trials and the best recipe [default: STUDY without its extension]")
      ->type_name("DIR");
  verb->add_option("--html", arguments.html, "Write a report with charts to this HTML file")->type_name("FILE");
  add_json(verb, arguments.json);
  for (const char* name : {"--trials", "--jobs", "--seed", "--resume", "--out", "--html"})
    verb->get_option("--lr-range")->excludes(verb->get_option(name));
  return verb;
}

}  // namespace bellows::cli
