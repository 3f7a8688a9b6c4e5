#include <string>

#include "cli/deploy/arguments.h"
#include "cli/option_checks.h"

namespace bellows::cli {

namespace {

std::string difference_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number of at least 0, such as 0.05", /*zero=*/true);
}

void add_limits(CLI::App* verb, DeployArguments& arguments) {
  begin_group(verb, "Limits");
  verb->add_option("--max-drop", arguments.max_drop,
                   "With held-out data: largest loss of accuracy in percentage points [default: 0.5]")
      ->type_name("POINTS")
      ->check(CLI::Validator(points_problem, ""));
  verb->add_option("--tolerance", arguments.tolerance,
                   "Without held-out data: largest difference of an output, divided by its largest magnitude. For fp32 "
                   "files, it is at most 0.001 [default: 0.05]")
      ->type_name("X")
      ->check(CLI::Validator(difference_problem, ""));
  verb->add_flag("--no-int8", arguments.no_int8, "Do not try int8 weights and activations");
  verb->add_flag("--triton", arguments.triton,
                 "Choose only among ONNX and TorchScript files, which stock Triton Inference Server serves, too");
  verb->add_option("--backends", arguments.backends,
                   "Use only these back ends, such as program,onnxruntime [default: all that are installed]")
      ->type_name("LIST");
}

}  // namespace

void add_deployment(CLI::App* verb, DeployArguments& arguments) {
  add_limits(verb, arguments);
  begin_group(verb, "Measurement");
  verb->add_option("--batch-size", arguments.batch_size, "Samples of a measured call [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--length", arguments.length,
                   "Without data: tokens, time steps, or height and width of images [default: the model's]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--seconds", arguments.seconds, "Measured time of each candidate in seconds [default: 2]")
      ->type_name("SECONDS")
      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--threads", arguments.threads, "Threads of one call [default: one per core]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  begin_group(verb, "Output");
  verb->add_option("--target", arguments.target, "Model repository to write. The folder must not exist yet")
      ->type_name("DIR")
      ->required();
  verb->add_option("--name", arguments.name, "Name of the model in the repository [default: the name of the model]")
      ->type_name("NAME");
  verb->add_option("--max-batch-size", arguments.max_batch_size,
                   "Largest batch to which the server combines requests [default: 8]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  add_json(verb, arguments.json);
}

}  // namespace bellows::cli
