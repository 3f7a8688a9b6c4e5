#include <cstdint>
#include <string>

#include "cli/help_texts.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

std::string milliseconds_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number of milliseconds above 0 and at most 10^9");
}

std::string transfer_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number of milliseconds from 0 to 10^9", /*zero=*/true);
}

void add_schedule_size(CLI::App* verb, ScheduleArguments& arguments) {
  const auto count = [&](const char* name, int64_t& value, int64_t most, const char* help) {
    verb->add_option(name, value, help)->type_name("N")->check(whole_number(1, most));
  };
  begin_group(verb, "Size");
  count("--ranks", arguments.ranks, 256, "Number of ranks that hold the stages [default: 4]");
  count("--micro-batches", arguments.micro_batches, 1024, "Number of micro-batches of a step [default: 8]");
  count("--stages-per-rank", arguments.stages_per_rank, 16, "Number of stages per rank, for interleaved [default: 2]");
}

void add_schedule_times(CLI::App* verb, ScheduleArguments& arguments) {
  const auto time = [&](const char* name, double& value, auto problem, const char* help) {
    verb->add_option(name, value, help)->type_name("MS")->check(CLI::Validator(problem, ""));
  };
  begin_group(verb, "Times");
  time("--forward-ms", arguments.forward_ms, milliseconds_problem,
       "Time of the forward pass of one micro-batch in one stage [default: 1]");
  time("--backward-ms", arguments.backward_ms, milliseconds_problem,
       "Time of the backward pass. If a schedule divides it, each part takes half of this time [default: 2]");
  time("--transfer-ms", arguments.transfer_ms, transfer_problem,
       "Time to send an output or a gradient to another rank [default: 0]");
}

}  // namespace

CLI::App* add_schedule(CLI::App& app, ScheduleArguments& arguments) {
  CLI::App* verb = app.add_subcommand("schedule", "Show a pipeline schedule with its bubble and its activations")
                       ->footer(schedule_footer);
  verb->add_option("SCHEDULE", arguments.schedule,
                   "gpipe, 1f1b, interleaved, zero_bubble, or the path of a schedule file")
      ->required();
  add_schedule_size(verb, arguments);
  add_schedule_times(verb, arguments);
  begin_group(verb, "Output");
  verb->add_option("--html", arguments.html, "Write a page with a chart of the schedule to this HTML file")
      ->type_name("FILE");
  verb->add_option("--trace", arguments.trace, "Write a Chrome trace (ui.perfetto.dev) to this file")
      ->type_name("FILE");
  verb->add_option("--out", arguments.out,
                   "Write the table of actions to this file, which you can edit and pass as SCHEDULE")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

}  // namespace bellows::cli
