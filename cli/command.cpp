#include "cli/command.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/version.h"
#include "bellows/system/file.h"
#include "bellows/system/machine.h"
#include "bellows/system/openmp_wait_policy.h"
#include "bellows/system/stop.h"
#include "bellows/system/thread.h"
#include "bellows/train/recipe/recipe_error.h"
#include "cli/deploy/arguments.h"
#include "cli/help_format.h"
#include "cli/help_texts.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/parse_problem.h"
#include "cli/plugin.h"
#include "cli/terminal.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

template <class Action>
int with_plugins(const std::vector<std::string>& plugins, Action verb) {
  load_plugins(plugins);
  return verb();
}

/// A verb, and the function that runs it after its arguments were parsed.
struct Verb {
  CLI::App* parsed;
  std::function<int()> run;
};

int usage(const std::string& message, const std::string& verb) {
  print_error(message);
  std::fprintf(stderr, "Run `bellows %s--help` for help.\n", verb.empty() ? "" : (verb + " ").c_str());
  return exit_usage;
}

int usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return exit_usage;
  }
  const bool known = std::find(verbs.begin(), verbs.end(), first) != verbs.end();
  if (known) return usage(parse_problem(error, *app.get_subcommand(first)), first);
  if (first.starts_with("-")) return usage("unknown option " + first + ".", "");
  return usage(c10::str("unknown command \"", first, "\".", did_you_mean(first, verbs)), "");
}

/// Maps names of library options, which errors put in backquotes, to the command's options.
constexpr std::pair<const char*, const char*> option_names[] = {{"accept_changes", "--accept-changes"},
                                                                {"add", "--add"},
                                                                {"address", "--address"},
                                                                {"count", "--count"},
                                                                {"data", "--data"},
                                                                {"encode", "--encode"},
                                                                {"format", "--format"},
                                                                {"keep", "--keep"},
                                                                {"max_epochs", "--max-epochs"},
                                                                {"max_restarts", "--max-restarts"},
                                                                {"min_nodes", "--min-nodes"},
                                                                {"min_ranks", "--min-ranks"},
                                                                {"no_authentication", "--no-authentication"},
                                                                {"nodes", "--nnodes"},
                                                                {"providers", "--providers"},
                                                                {"ranks", "--ranks"},
                                                                {"rendezvous", "--rdzv"},
                                                                {"replace_lost", "--replace-lost"},
                                                                {"resize", "--resize"},
                                                                {"resume", "--resume"},
                                                                {"run", "--run"},
                                                                {"split", "--split"},
                                                                {"target_accuracy", "--target-accuracy"},
                                                                {"tls_certificate", "--tls-certificate"},
                                                                {"tls_key", "--tls-key"},
                                                                {"token_file", "--token-file"},
                                                                {"url", "--url"},
                                                                {"vocabulary", "--vocabulary"},
                                                                {"weights", "--weights"}};

/// Replaces library options in `message` with the verb's options: "`min_ranks`" becomes "--min-ranks".
std::string with_option_names(std::string message, const CLI::App& verb) {
  for (const auto& [name, option] : option_names) {
    if (!verb.get_option_no_throw(option)) continue;
    const std::string quoted = c10::str("`", name, "`");
    for (size_t at = message.find(quoted); at != std::string::npos; at = message.find(quoted, at))
      message.replace(at, quoted.size(), option);
  }
  return message;
}

template <class Action>
int guarded(const CLI::App& verb, Action action) {
  try {
    return action();
  } catch (const UsageError& error) {
    return usage(with_option_names(error.what(), verb), verb.get_name());
  } catch (const train::RecipeError& error) {
    return usage(with_option_names(user_message(error), verb), verb.get_name());
  } catch (const Stopped& stopped) {
    print_error(stopped.what());
    return Interrupt::exit_code();
  } catch (const c10::DistError& error) {
    print_error(user_message(error));
    // After a stop request, other ranks may end before this rank notices the request.
    return Interrupt::requested() ? Interrupt::exit_code() : exit_failed;
  } catch (const std::bad_alloc&) {
    print_error("out of memory. Use smaller batches, or close other programs.");
  } catch (const std::exception& error) {
    print_error(with_option_names(user_message(error), verb));
  }
  return exit_failed;
}

}  // namespace

void check_output_file(const JsonTarget& target) {
  if (!target.empty() && target != "-") AtomicFile probe(target);  // deletes its temporary file
}

void write_json(const JsonTarget& target, const std::string& text) {
  if (target == "-") {
    print_result(text);
  } else if (!target.empty()) {
    write_text_file(target, text);
  }
}

namespace {

void on_bus_error(int) {
  constexpr std::string_view words =
      "\nbellows: a file was truncated while it was being read, or its disk failed. Do not change dataset files in "
      "place: write a new file and rename it.\n";
  if (write(STDERR_FILENO, words.data(), words.size()) < 0) _exit(exit_failed);
  _exit(exit_failed);
}

void describe(CLI::App& app) {
  app.description("Bellows speeds up libtorch training and inference, and measures each speedup on your model.");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", std::string("bellows " BELLOWS_VERSION ", libtorch ") + this_machine().libtorch,
                       "Print the versions of Bellows and libtorch and exit");
  app.formatter_fn(help_text);
  app.footer(overview);
  app.require_subcommand(1);
}

/// Prints the text of `--help` or `--version`.
int print_help(const CLI::App& app, const CLI::Success& request) {
  std::ostringstream text;
  const int code = app.exit(request, text);
  return guarded(app, [&] {
    print_result(text.str());
    return code;
  });
}

void handle_file_signals() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that exceeds the size limit then fails with an error, as on a full disk
  std::signal(SIGBUS, on_bus_error);
}

/// The arguments of all subcommands.
struct Arguments {
  TrainArguments train;
  LadderArguments ladder;
  PlanArguments plan;
  ProfileArguments profile;
  SimulateArguments simulate;
  TuneArguments tune;
  EvaluateArguments evaluate;
  PredictArguments predict;
  QuantizeArguments quantize;
  ExportArguments export_model;
  DistillArguments distill;
  ScheduleArguments schedule;
  ImportArguments import_config;
  SelectArguments select;
  PackArguments pack;
  MakeDataArguments make_data;
  BenchDataArguments bench_data;
  BenchModelArguments bench_model;
  ServeArguments serve;
  PerfArguments perf;
  DeployArguments deploy;
  LaunchArguments launch;
  CheckpointArguments checkpoint;
  CacheArguments cache;
  DoctorArguments doctor;
};

/// Adds all subcommands; the last one is `doctor`.
std::vector<Verb> add_verbs(CLI::App& app, Arguments& all) {
  std::vector<Verb> verbs = {
      {add_train(app, all.train),
       [&] { return with_plugins(all.train.plugins, [&] { return run_train(all.train); }); }},
      {add_ladder(app, all.ladder),
       [&] { return with_plugins(all.ladder.plugins, [&] { return run_ladder(all.ladder); }); }},
      {add_plan(app, all.plan), [&] { return with_plugins(all.plan.plugins, [&] { return run_plan(all.plan); }); }},
      {add_profile(app, all.profile),
       [&] { return with_plugins(all.profile.plugins, [&] { return run_profile(all.profile); }); }},
      {add_simulate(app, all.simulate), [&] { return run_simulate(all.simulate); }},
      {add_tune(app, all.tune), [&] { return with_plugins(all.tune.plugins, [&] { return run_tune(all.tune); }); }},
      {add_evaluate(app, all.evaluate),
       [&] { return with_plugins(all.evaluate.plugins, [&] { return run_evaluate(all.evaluate); }); }},
      {add_predict(app, all.predict),
       [&] { return with_plugins(all.predict.plugins, [&] { return run_predict(all.predict); }); }},
      {add_quantize(app, all.quantize),
       [&] { return with_plugins(all.quantize.plugins, [&] { return run_quantize(all.quantize); }); }},
      {add_export(app, all.export_model),
       [&] { return with_plugins(all.export_model.plugins, [&] { return run_export(all.export_model); }); }},
      {add_distill(app, all.distill),
       [&] { return with_plugins(all.distill.plugins, [&] { return run_distill(all.distill); }); }},
      {add_schedule(app, all.schedule), [&] { return run_schedule(all.schedule); }},
      {add_import(app, all.import_config), [&] { return run_import(all.import_config); }},
      {add_select(app, all.select),
       [&] { return with_plugins(all.select.plugins, [&] { return run_select(all.select); }); }},
      {add_pack(app, all.pack), [&] { return run_pack(all.pack); }},
      {add_make_data(app, all.make_data), [&] { return run_make_data(all.make_data); }},
      {add_bench_data(app, all.bench_data), [&] { return run_bench_data(all.bench_data); }},
      {add_bench_model(app, all.bench_model), [&] { return run_bench_model(all.bench_model); }},
      {add_serve(app, all.serve), [&] { return run_serve(all.serve); }},
      {add_deploy(app, all.deploy),
       [&] { return with_plugins(all.deploy.plugins, [&] { return run_deploy(all.deploy); }); }},
      {add_perf(app, all.perf), [&] { return run_perf(all.perf); }},
      {add_launch(app, all.launch), [&] { return run_launch(all.launch); }},
      {add_checkpoint(app, all.checkpoint), [&] {
         return all.checkpoint.out.empty() ? run_checkpoint_info(all.checkpoint)
                                           : run_checkpoint_export(all.checkpoint);
       }}};
  CLI::App* const cache = add_cache(app, all.cache);
  verbs.push_back(
      {cache, [&all, cache] { return run_cache(cache->get_subcommands().front()->get_name(), all.cache); }});
  verbs.push_back({add_doctor(app, all.doctor), [&] { return run_doctor(all.doctor); }});
  return verbs;
}

}  // namespace

int run(int argc, char** argv) {
  handle_file_signals();
  CLI::App app{"", "bellows"};
  describe(app);
  Arguments arguments;
  const std::vector<Verb> verbs = add_verbs(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return print_help(app, help_or_version);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, argc, argv);
  }
  const auto chosen = std::find_if(verbs.begin(), verbs.end(), [](const Verb& verb) { return verb.parsed->parsed(); });
  const bool runs_doctor = chosen->parsed == verbs.back().parsed;
  if (!runs_doctor) set_openmp_wait_policy(argv);
  end_on_signals();  // after set_openmp_wait_policy(), which may restart the program
  return guarded(*chosen->parsed, [&] {
    if (!runs_doctor) check_threads(at::get_num_threads());
    return chosen->run();
  });
}

}  // namespace bellows::cli
