#include <string>
#include <vector>

#include "cli/help_texts.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

void add_model_inputs(CLI::App* verb, BenchModelArguments& arguments) {
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* help, const char* type) {
    verb->add_option(name, values, help)
        ->type_name(type)
        ->expected(1, 1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  begin_group(verb, "Inputs");
  verb->add_option("--batch-size", arguments.batch_size, "Size of axis 0, if it may vary [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--length", arguments.length,
                   "Size of all other axes that may vary [default: 128, or 224 for inputs with four axes]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  list("--size", arguments.sizes, "Size of the axis with this name, or of INPUT:AXIS. You can repeat this option",
       "NAME=N");
  verb->add_option("--vocabulary", arguments.vocabulary, "Integers are random numbers from 0 to N - 1 [default: 1000]")
      ->type_name("N")
      ->check(whole_number(1, INT64_MAX));
  list("--input", arguments.inputs,
       "Values of an input from a NumPy file, or its sizes and dtype, such as x=1x3x224x224 or ids=1x128:int64. "
       "Required for TorchScript files, which state no sizes. You can repeat this option",
       "NAME=VALUE");
}

std::string tolerance_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number of at least 0, such as 0.01", /*zero=*/true);
}

}  // namespace

CLI::App* add_bench_model(CLI::App& app, BenchModelArguments& arguments) {
  CLI::App* verb = app.add_subcommand("bench-model", "Compare the speed and the results of inference back ends")
                       ->footer(bench_model_footer);
  verb->add_option("FILE", arguments.files, "Model files: TorchScript, compiled programs, .pt2, .onnx or .xml")
      ->required();
  add_model_inputs(verb, arguments);
  begin_group(verb, "Back ends");
  verb->add_option("--backends", arguments.backends,
                   "Use only these back ends, such as libtorch,onnxruntime [default: all that read the file]")
      ->type_name("LIST");
  verb->add_option("--providers", arguments.providers,
                   "Execution providers of ONNX Runtime in order: cpu, openvino, cuda, tensorrt [default: cpu]")
      ->type_name("LIST");
  verb->add_option("--dtype", arguments.dtype,
                   "Dtype of matmuls and convolutions, fp32 or bf16, in back ends that can choose it [default: fp32]")
      ->type_name("DTYPE")
      ->check(CLI::Validator(dtype_problem, ""));
  verb->add_option("--threads", arguments.threads, "Threads of one call [default: one per core]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  begin_group(verb, "Measurement");
  verb->add_option("--seconds", arguments.seconds, "Measure each model for this many seconds [default: 3]")
      ->type_name("SECONDS")
      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--tolerance", arguments.tolerance,
                   "Largest accepted difference, divided by the largest value of the output [default: 0.001, or 0.05 "
                   "with --dtype bf16]")
      ->type_name("T")
      ->check(CLI::Validator(tolerance_problem, ""));
  begin_group(verb, "Output");
  add_json(verb, arguments.json);
  return verb;
}

}  // namespace bellows::cli
