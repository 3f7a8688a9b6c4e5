#include <string>
#include <vector>

#include "cli/deploy/arguments.h"
#include "cli/help_texts.h"
#include "cli/option_checks.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

CLI::Validator one_of_two(const char* first, const char* second) {
  const auto problem = [first, second](const std::string& text) {
    if (text == first || text == second) return std::string();
    return std::string("expected ") + first + " or " + second + ", got " + text;
  };
  return {problem, ""};
}

void add_repeated(CLI::App* verb, const char* name, std::vector<std::string>& values, const char* help,
                  const char* type) {
  verb->add_option(name, values, help)
      ->type_name(type)
      ->expected(1, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_server(CLI::App* verb, PerfArguments& arguments) {
  begin_group(verb, "Server");
  verb->add_option("--url", arguments.url, "Address of the server [default: 127.0.0.1:8000]")->type_name("HOST:PORT");
  verb->add_option("--model-version", arguments.version, "Version of the model [default: the newest one]")
      ->type_name("VERSION");
  add_repeated(
      verb, "--header", arguments.headers,
      "Send this header with each request, such as \"Authorization: Bearer TOKEN\". You can repeat this option",
      "NAME:VALUE");
  verb->add_option("--timeout", arguments.timeout, "Give up a request after this many seconds [default: 30]")
      ->type_name("SECONDS")
      ->check(CLI::Validator(seconds_problem, ""));
}

void add_load(CLI::App* verb, PerfArguments& arguments) {
  begin_group(verb, "Load (levels run one after another)");
  auto* concurrency =
      verb->add_option("--concurrency", arguments.concurrency,
                       "Closed loop: number of requests that are always in flight. 1:16 doubles from 1 to 16, 4:12:4 "
                       "adds 4, and 1,6 is a list [default: 1]")
          ->type_name("LEVELS");
  verb->add_option("--rate", arguments.rate,
                   "Open loop: requests per second, independent of the answers. Levels are written as for "
                   "--concurrency")
      ->type_name("LEVELS")
      ->excludes(concurrency);
  verb->add_option(
          "--arrivals", arguments.arrivals,
          "Open loop: constant or poisson (random, independent) distances between requests [default: constant]")
      ->type_name("KIND")
      ->check(one_of_two("constant", "poisson"));
  verb->add_option("--connections", arguments.connections, "Open loop: largest number of connections [default: 256]")
      ->type_name("N")
      ->check(whole_number(1, 65536));
}

void add_requests(CLI::App* verb, PerfArguments& arguments) {
  begin_group(verb, "Requests");
  verb->add_option("--batch-size", arguments.batch_size,
                   "Samples per request: the size of axis 0 of each input, if it may vary [default: 1]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  add_repeated(
      verb, "--shape", arguments.shapes,
      "All sizes of an input, such as ids:1,14. Required if an axis other than axis 0 may vary. You can repeat "
      "this option",
      "NAME:SIZES");
  verb->add_option("--input-data", arguments.data_file,
                   "Send the values of this JSON file in turns, such as {\"data\": [{\"x\": [1, 2]}]} [default: random "
                   "values]")
      ->type_name("FILE");
  verb->add_option("--vocabulary", arguments.vocabulary, "Random integers are from 0 to N - 1 [default: 1000]")
      ->type_name("N")
      ->check(whole_number(1, INT64_MAX));
  verb->add_option("--tensors", arguments.tensors, "Send and receive tensors as binary or json [default: binary]")
      ->type_name("FORM")
      ->check(one_of_two("binary", "json"));
  verb->add_option("--seed", arguments.seed, "Seed of random values and arrivals [default: 1]")
      ->type_name("N")
      ->check(whole_number(0, INT64_MAX));
}

std::string warmup_problem(const std::string& text) {
  return number_problem(text, 1e6, "a number of seconds of at least 0", /*zero=*/true);
}

}  // namespace

CLI::App* add_perf(CLI::App& app, PerfArguments& arguments) {
  CLI::App* verb =
      app.add_subcommand("perf", "Measure latency and throughput of a model server under load")->footer(perf_footer);
  verb->add_option("MODEL", arguments.model, "Name of the model on the server")->required();
  add_server(verb, arguments);
  add_load(verb, arguments);
  add_requests(verb, arguments);
  begin_group(verb, "Measurement");
  verb->add_option("--warmup", arguments.warmup, "Do not measure the first seconds of a level [default: 1]")
      ->type_name("SECONDS")
      ->check(CLI::Validator(warmup_problem, ""));
  verb->add_option("--window", arguments.window,
                   "Length of a window in seconds. Windows with fewer than ten requests are longer [default: 1]")
      ->type_name("SECONDS")
      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--stability", arguments.stability,
                   "Three windows are stable if throughput and mean latency differ by at most this percentage "
                   "[default: 10]")
      ->type_name("PERCENT")
      ->check(CLI::Validator(points_problem, ""));
  verb->add_option("--max-windows", arguments.max_windows,
                   "End a level after this many windows, even if they are not stable [default: 10]")
      ->type_name("N")
      ->check(whole_number(1, 1000000));
  begin_group(verb, "Output");
  verb->add_option("--chart", arguments.chart,
                   "Draw latency against throughput to this file. FILE.html is a page, other names are SVG")
      ->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

}  // namespace bellows::cli
