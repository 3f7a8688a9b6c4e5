#include "cli/help_texts.h"
#include "cli/job_options.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

CLI::App* add_profile(CLI::App& app, ProfileArguments& arguments) {
  CLI::App* verb = app.add_subcommand("profile", "Find out what limits a training step")->footer(profile_footer);
  add_job(verb, arguments);
  begin_group(verb, "Measurement");
  verb->add_option("--steps", arguments.steps, "Number of timed steps [default: 10]")
      ->type_name("N")
      ->check(whole_number(1, 100000));
  verb->add_flag(
      "--batch-sweep", arguments.batch_sweep,
      "Also measure the throughput with 2, 4 and 8 times as many samples per batch, until it no longer grows");
  begin_group(verb, "Output");
  verb->add_option("--html", arguments.html, "Write the findings and all measurements to this HTML file")
      ->type_name("FILE");
  verb->add_option("--trace", arguments.trace, "Write a Chrome trace of one step (ui.perfetto.dev) to this file")
      ->type_name("FILE");
  verb->add_option("--tensorboard", arguments.tensorboard,
                   "Write a trace of one step to this folder for TensorBoard with the plugin torch-tb-profiler")
      ->type_name("FOLDER");
  add_json(verb, arguments.json);
  return verb;
}

}  // namespace bellows::cli
