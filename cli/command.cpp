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
#include "cli/help_texts.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/plugin.h"
#include "cli/size_option.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

/// CLI11's Range lets NaN through.
std::string number_problem(const std::string& text, double most, const char* expected) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && number > 0 && number <= most) return "";
  return std::string("expected ") + expected + ", got " + text;
}

std::string share_problem(const std::string& text) {
  return number_problem(text, 1, "a share above 0 and up to 1, such as 0.97");
}

std::string seconds_problem(const std::string& text) {
  return number_problem(text, 1e9, "seconds above 0, such as 300");
}

std::string positive_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number above 0, up to 10^9");
}

void add_json(CLI::App* verb, JsonTarget& json) {
  verb->add_option("--json", json, "Result as JSON, to FILE or standard output")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
}

void add_plugins(CLI::App* verb, std::vector<std::string>& plugins) {
  verb->add_option("--plugin", plugins, "Library with your own models; may be repeated")
      ->type_name("FILE")
      ->expected(1, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// What a run is made of, the same for all verbs that train or plan to.
template <class Arguments>
void add_job(CLI::App* verb, Arguments& arguments) {
  verb->add_option("--recipe", arguments.recipe, "Recipe (YAML); all keys have defaults")->type_name("FILE");
  if constexpr (requires { arguments.data; })
    verb->add_option("--data", arguments.data, "Data set, instead of the recipe's")->type_name("PATH");
  verb->add_option("--model", arguments.model, "Model: a name, or a TorchScript file")->type_name("NAME|FILE");
  add_plugins(verb, arguments.plugins);
  verb->add_option("--set", arguments.set, "Any key of the recipe; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::App* add_train(CLI::App& app, TrainArguments& arguments) {
  CLI::App* verb = app.add_subcommand("train", "Train a model by a recipe")->footer(train_footer);
  add_job(verb, arguments);
  verb->add_option("--out", arguments.out, "Folder for checkpoints, logs and the recipe")->type_name("DIR");
  verb->add_flag("--resume", arguments.resume, "Go on from the newest checkpoint in --out");
  verb->add_flag("--accept-changes", arguments.accept_changes, "Resume though what differs changes the bits");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_ladder(CLI::App& app, LadderArguments& arguments) {
  CLI::App* verb = app.add_subcommand("ladder", "Measure what each technique brings")->footer(ladder_footer);
  add_job(verb, arguments);
  verb->add_option("--target-accuracy", arguments.target_accuracy, "Held-out accuracy to train to; 0.97")
      ->type_name("SHARE")
      ->check(CLI::Validator(share_problem, ""));
  verb->add_flag("--memory", arguments.memory, "Climb what saves memory at a cost in time");
  add_size(verb, "--memory-target", arguments.memory_target, "Find the fastest recipe under this peak: 2GB");
  verb->add_option("--eval-every-steps", arguments.eval_every_steps, "Steps between looks at the held-out accuracy")
      ->type_name("STEPS")
      ->check(CLI::Range(1, 1000000).description(""));
  verb->add_option("--max-seconds", arguments.max_seconds, "Start no further rung after this")
      ->type_name("SECONDS")
      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--max-epochs", arguments.max_epochs, "Epochs after which a run has missed the target; 30")
      ->type_name("EPOCHS")
      ->check(CLI::Range(1, 1000000).description(""));
  verb->add_flag("--quick", arguments.quick, "Shorter windows, one seed: a rough answer");
  verb->add_flag("--list", arguments.list, "Explain the techniques (Markdown), measure nothing");
  verb->add_option("--html", arguments.html, "A page with charts, to FILE")->type_name("FILE");
  verb->add_option("--write-recipe", arguments.write_recipe, "The recipe that was found, to FILE")->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments) {
  CLI::App* verb = app.add_subcommand("plan", "Predict the memory that training needs")->footer(plan_footer);
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 20).description("");
  add_job(verb, arguments);
  verb->add_option("--batch", arguments.batch, "Samples, of all ranks; the recipe's")->type_name("N")->check(count);
  verb->add_option("--seq", arguments.seq, "Tokens, or steps of a series")->type_name("N")->check(count);
  verb->add_option("--image", arguments.image, "Height and width of pictures")
      ->type_name("N")
      ->check(CLI::Range(1, 16384).description(""));
  verb->add_option("--ranks", arguments.ranks, "Devices that share the batch; 1")->type_name("N")->check(count);
  add_size(verb, "--memory", arguments.memory, "Of one device, such as 16GB; this machine's");
  add_size(verb, "--fit", arguments.fit, "Search the cheapest recipe that fits");
  verb->add_option("--price-per-hour", arguments.price, "Of one device: cost per sample")
      ->type_name("PRICE")
      ->check(CLI::Validator(positive_problem, ""));
  verb->add_option("--step-ms", arguments.step_ms, "Measured time of a step; estimated")
      ->type_name("MS")
      ->check(CLI::Validator(positive_problem, ""));
  verb->add_option("--html", arguments.html, "Which tensor lives when, as a page, to FILE")->type_name("FILE");
  verb->add_option("--trace", arguments.trace, "The same as a Chrome trace, to FILE")->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_select(CLI::App& app, SelectArguments& arguments) {
  CLI::App* verb = app.add_subcommand("select", "Choose samples to train on, or to label")->footer(select_footer);
  auto* from = verb->add_option_group("samples from")->require_option(1);
  from->add_option("--run", arguments.run, "Folder of a run: its data, model and statistics")->type_name("DIR");
  from->add_option("--data", arguments.data, "Data set, for --by random without a run")->type_name("PATH");
  verb->add_option("--split", arguments.split, "Of --data, where it has several; train")->type_name("NAME");
  verb->add_option("--by", arguments.by, "Rule, one of those below")->type_name("RULE")->required();
  auto* how_many = verb->add_option_group("how many")->require_option(1);
  how_many->add_option("--keep", arguments.keep, "Share to keep, hardest first")
      ->type_name("SHARE")
      ->check(CLI::Validator(share_problem, ""));
  const auto positive = CLI::Range(int64_t{1}, INT64_MAX).description("");
  how_many->add_option("--count", arguments.count, "How many to keep")->type_name("N")->check(positive);
  how_many->add_option("--add", arguments.add, "How many to label next, beside the run's subset")
      ->type_name("N")
      ->check(positive);
  verb->add_flag("--per-class", arguments.per_class, "Each class keeps its share");
  verb->add_option("--passes", arguments.passes, "Of bald, with dropout on; 20")
      ->type_name("N")
      ->check(CLI::Range(2, 1000000).description(""));
  add_plugins(verb, arguments.plugins);
  verb->add_option("--seed", arguments.seed, "Of what is drawn; 1")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  verb->add_option("--out", arguments.out, "The subset")->type_name("FILE")->required();
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_pack(CLI::App& app, PackArguments& arguments) {
  CLI::App* verb = app.add_subcommand("pack", "Convert a data set to another format")->footer(pack_footer);
  verb->add_option("SRC", arguments.source, "Data set: a folder, a file, a pattern of shards")->required();
  verb->add_option("DST", arguments.destination, "What is written: a file or a folder")->required();
  verb->add_option("--format", arguments.format, "Format; by DST's suffix, or pack")->type_name("NAME");
  verb->add_option("--split", arguments.split, "Of SRC, where it has several")->type_name("NAME");
  verb->add_option("--select", arguments.select, "Only these samples (bellows select)")->type_name("FILE");
  verb->add_option("--resize", arguments.resize, "Shorter side at most, or height x width")->type_name("SIDE|HxW");
  verb->add_option("--encode", arguments.encode, "Pictures: jpg[:QUALITY], png, raw, restart, keep")
      ->type_name("CODING");
  auto* size = add_size(verb, "--shard-size", arguments.shard_bytes, "Bytes of a shard, such as 256MB; 1GB");
  verb->add_option("--shard-samples", arguments.shard_samples, "Samples of a shard")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, INT64_MAX).description(""))
      ->excludes(size);
  verb->add_option("--threads", arguments.threads, "Threads that read, scale and encode; all")
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""));
  verb->add_flag("--verify", arguments.verify, "Compare every sample with SRC at the end");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_bench_data(CLI::App& app, BenchDataArguments& arguments) {
  CLI::App* verb = app.add_subcommand("bench-data", "Measure how fast a data set loads")->footer(bench_data_footer);
  verb->add_option("URL", arguments.url, "Data set: a folder, a file, a pattern of shards")->required();
  verb->add_option("--split", arguments.split, "Of it, where it has several")->type_name("NAME");
  verb->add_option("--batch", arguments.batch, "Samples of a batch; 64")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""));
  verb->add_option("--threads", arguments.threads, "Threads beside the caller; auto: as many as help")
      ->type_name("N|auto");
  verb->add_option("--prefetch", arguments.prefetch, "Batches made ahead; 4")
      ->type_name("N")
      ->check(CLI::Range(1, 65536).description(""));
  verb->add_option("--crop", arguments.crop, "Random resized crop of this side, and flip")
      ->type_name("SIDE")
      ->check(CLI::Range(1, 16384).description(""));
  verb->add_option("--cache-mb", arguments.cache_mb, "MiB of decoded pictures to keep; 0")
      ->type_name("MIB")
      ->check(CLI::Range(0, 1 << 24).description(""));
  verb->add_flag("--shuffle", arguments.shuffle, "Another order each epoch");
  auto* seconds = verb->add_option("--seconds", arguments.seconds, "How long; 10")
                      ->type_name("SECONDS")
                      ->check(CLI::Validator(seconds_problem, ""));
  verb->add_option("--epochs", arguments.epochs, "Instead: so many times all samples")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000).description(""))
      ->excludes(seconds);
  verb->add_option("--trace", arguments.trace, "A Chrome trace, to FILE")->type_name("FILE");
  add_json(verb, arguments.json);
  return verb;
}

CLI::App* add_launch(CLI::App& app, LaunchArguments& arguments) {
  CLI::App* verb = app.add_subcommand("launch", "Start a program in many processes")->footer(launch_footer);
  comm::LaunchOptions& options = arguments.options;
  const auto at_least = [](int low) { return CLI::Range(low, 1000000).description(""); };
  verb->add_option("-n,--ranks", options.ranks, "Processes on this machine")
      ->type_name("N")
      ->required()
      ->check(at_least(1));
  verb->add_option("--nnodes", options.nodes, "Machines; 1")->type_name("N")->check(at_least(1));
  verb->add_option("--node-rank", options.node_rank, "Which of them this is; 0")->type_name("R")->check(at_least(0));
  verb->add_option("--rdzv", options.rendezvous, "Where node 0 is; loopback, any free port")->type_name("HOST:PORT");
  verb->add_option("--max-restarts", options.max_restarts, "Starts of all anew after a failure; 0")
      ->type_name("K")
      ->check(at_least(0));
  verb->add_option("--min-ranks", options.min_ranks, "Each with a rank less, down to M; as many")
      ->type_name("M")
      ->check(at_least(1));
  verb->add_option("--min-nodes", options.min_nodes, "Each without the nodes lost, down to M; all")
      ->type_name("M")
      ->check(at_least(1));
  verb->add_option("--node-timeout", options.node_timeout_s, "Until a silent node is lost, and may return; 30")
      ->type_name("S")
      ->check(CLI::PositiveNumber.description(""));
  verb->add_option("COMMAND", options.command, "Behind --: the program and its arguments")->required();
  return verb;
}

CLI::App* add_checkpoint(CLI::App& app, CheckpointArguments& arguments) {
  CLI::App* verb = app.add_subcommand("checkpoint", "Look at a checkpoint, export it")->footer(checkpoint_footer);
  verb->require_subcommand(1);
  CLI::App* info = verb->add_subcommand("info", "What is in it, and where its run was")->footer(checkpoint_footer);
  info->add_flag("--verify", arguments.verify, "Compare all checksums");
  CLI::App* exported = verb->add_subcommand("export", "Its weights, for Python")->footer(checkpoint_footer);
  for (CLI::App* action : {info, exported}) {
    action->add_option("PATH", arguments.path, "A checkpoint, or a run's folder")->required();
    add_json(action, arguments.json);
  }
  exported->add_option("FILE", arguments.out, "The safetensors file")->required();
  return verb;
}

CLI::App* add_doctor(CLI::App& app, DoctorArguments& arguments) {
  CLI::App* verb = app.add_subcommand("doctor", "Look at the machine and libtorch")->footer(doctor_footer);
  add_json(verb, arguments.json);
  return verb;
}

template <class Action>
int with_plugins(const std::vector<std::string>& plugins, Action verb) {
  load_plugins(plugins);
  return verb();
}

/// What a verb does once its arguments are read.
struct Verb {
  CLI::App* parsed;
  std::function<int()> run;
};

int usage(const std::string& message, const std::string& verb) {
  print_error(message);
  std::fprintf(stderr, "Try `bellows %s--help`.\n", verb.empty() ? "" : (verb + " ").c_str());
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
  if (known || first.starts_with("-")) return usage(error.what(), known ? first : "");
  return usage(c10::str("no verb is called \"", first, "\".", did_you_mean(first, verbs)), "");
}

/// The command's options by their names in the library, which errors put in backquotes.
constexpr std::pair<const char*, const char*> option_names[] = {{"accept_changes", "--accept-changes"},
                                                                {"encode", "--encode"},
                                                                {"format", "--format"},
                                                                {"max_epochs", "--max-epochs"},
                                                                {"min_nodes", "--min-nodes"},
                                                                {"min_ranks", "--min-ranks"},
                                                                {"nodes", "--nnodes"},
                                                                {"rendezvous", "--rdzv"},
                                                                {"resize", "--resize"},
                                                                {"target_accuracy", "--target-accuracy"}};

/// `message` with the options of `verb` instead of the library's: "`min_ranks`" becomes "--min-ranks".
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
    return usage(user_message(error), verb.get_name());
  } catch (const Stopped& stopped) {
    print_error(stopped.what());
    return Interrupt::exit_code();
  } catch (const std::bad_alloc&) {
    print_error("out of memory.");
  } catch (const std::exception& error) {
    print_error(with_option_names(user_message(error), verb));
  }
  return exit_failed;
}

}  // namespace

void check_json_target(const JsonTarget& target) {
  if (!target.empty() && target != "-") AtomicFile probe(target);  // leaves nothing behind
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
      "\nbellows: a file was cut short while it was read, or its disk failed. Write data sets anew and rename them; do "
      "not "
      "change them in place.\n";
  if (write(STDERR_FILENO, words.data(), words.size()) < 0) _exit(exit_failed);
  _exit(exit_failed);
}

void handle_file_signals() {
  std::signal(SIGXFSZ, SIG_IGN);  // writing a file that grows too large then fails with an error, as on a full disk
  std::signal(SIGBUS, on_bus_error);
}

}  // namespace

int run(int argc, char** argv) {
  handle_file_signals();
  CLI::App app{"Bellows: trains faster with libtorch, and proves it.", "bellows"};
  app.set_version_flag("--version", std::string("bellows " BELLOWS_VERSION ", libtorch ") + this_machine().libtorch);
  app.get_formatter()->column_width(30);
  app.footer(overview);
  app.require_subcommand(1);
  TrainArguments train;
  LadderArguments ladder;
  PlanArguments plan;
  SelectArguments select;
  PackArguments pack;
  BenchDataArguments bench_data;
  LaunchArguments launch;
  CheckpointArguments checkpoint;
  DoctorArguments doctor;
  CLI::App* doctor_verb = add_doctor(app, doctor);
  const std::vector<Verb> verbs = {
      {add_train(app, train), [&] { return with_plugins(train.plugins, [&] { return run_train(train); }); }},
      {add_ladder(app, ladder), [&] { return with_plugins(ladder.plugins, [&] { return run_ladder(ladder); }); }},
      {add_plan(app, plan), [&] { return with_plugins(plan.plugins, [&] { return run_plan(plan); }); }},
      {add_select(app, select), [&] { return with_plugins(select.plugins, [&] { return run_select(select); }); }},
      {add_pack(app, pack), [&] { return run_pack(pack); }},
      {add_bench_data(app, bench_data), [&] { return run_bench_data(bench_data); }},
      {add_launch(app, launch), [&] { return run_launch(launch); }},
      {add_checkpoint(app, checkpoint),
       [&] { return checkpoint.out.empty() ? run_checkpoint_info(checkpoint) : run_checkpoint_export(checkpoint); }},
      {doctor_verb, [&] { return run_doctor(doctor); }}};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, argc, argv);
  }
  const auto chosen = std::find_if(verbs.begin(), verbs.end(), [](const Verb& verb) { return verb.parsed->parsed(); });
  if (chosen->parsed != doctor_verb) bound_spinning(argv);
  end_on_signals();  // after bound_spinning(), which may start the program anew
  return guarded(*chosen->parsed, [&] {
    if (chosen->parsed != doctor_verb) check_threads(at::get_num_threads());
    return chosen->run();
  });
}

}  // namespace bellows::cli
