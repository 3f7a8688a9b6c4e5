#include <CLI/CLI.hpp>

#include "cli/help_texts.h"
#include "cli/job_options.h"
#include "cli/option_checks.h"
#include "cli/size_option.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

void add_batch_size(CLI::App* verb, TuneArguments& arguments) {
  verb->add_flag("--batch-size", arguments.batch_size,
                 "Search for the largest and the fastest batch size that fits into memory, and exit. STUDY is then a "
                 "recipe file")
      ->excludes("--lr-range");
  add_size(verb, "--memory", arguments.memory,
           "Memory that a process may use, with --batch-size [default: 90 % of the available memory]")
      ->needs("--batch-size");
  verb->add_flag("--measure-batch", arguments.measure_batch)->group("");  // a trial of --batch-size
}

}  // namespace

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
  add_batch_size(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--out", arguments.out,
                   "Folder for the trials and the best recipe [default: STUDY without its extension]")
      ->type_name("DIR");
  verb->add_option("--html", arguments.html, "Write a report with charts to this HTML file")->type_name("FILE");
  add_json(verb, arguments.json);
  verb->add_option("--write-recipe", arguments.write_recipe,
                   "Write the recipe with the fastest batch size to this file, with --batch-size")
      ->type_name("FILE")
      ->needs("--batch-size");
  for (const char* name : {"--trials", "--jobs", "--seed", "--resume", "--out", "--html"}) {
    for (const char* other : {"--lr-range", "--batch-size"}) verb->get_option(other)->excludes(verb->get_option(name));
  }
  return verb;
}

}  // namespace bellows::cli
