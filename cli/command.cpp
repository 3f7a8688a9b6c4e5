#include "cli/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/machine.h"
#include "bellows/core/spinning.h"
#include "bellows/core/version.h"
#include "cli/options.h"
#include "cli/plugin.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

constexpr const char* train_footer = R"(Trains and evaluates after every epoch. Ctrl-C saves a checkpoint, if --out is
given, and exits with 130; a second Ctrl-C leaves at once.

Examples:
  bellows train --recipe digits.yaml --out runs/digits
  bellows train --data data/digits --set lr=0.1 --set batch_size=64
  bellows train --out runs/digits --resume
  bellows train --data data/digits --plugin build/libmynet.so --model mynet
)";

constexpr const char* ladder_footer = R"(Starts from the plain program and switches on one technique after another, each
over the last one that was kept: alternating timed windows, then training from
scratch to the target. What does not help is dropped, and said.

Examples:
  bellows ladder --data data/digits --target-accuracy 0.97 --html ladder.html
  bellows ladder --data data/digits --model net.pt --memory
)";

constexpr const char* doctor_footer = R"(What this machine and this libtorch offer, what limits them, what to fix.

Example:
  bellows doctor --json
)";

constexpr const char* overview = R"(Examples:
  bellows ladder --data data/digits --target-accuracy 0.97 --json ladder.json
  bellows train --recipe digits.yaml --out runs/digits
  bellows doctor
Exit codes: 0 done, 1 failed, 2 wrong use, 130 stopped by Ctrl-C.
`bellows VERB --help` explains one verb.
)";

/// CLI11's Range lets NaN through.
std::string share_problem(const std::string& text) {
  char* end = nullptr;
  const double share = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && share > 0 && share <= 1) return "";
  return "expected a share above 0 and up to 1, such as 0.97, got " + text;
}

std::string seconds_problem(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (end != text.c_str() && *end == '\0' && seconds > 0 && seconds <= 1e9) return "";
  return "expected seconds above 0, such as 300, got " + text;
}

void add_json(CLI::App* verb, JsonTarget& json) {
  verb->add_option("--json", json, "Result as JSON, to FILE or standard output")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
}

/// What a run is made of, the same for all verbs that train.
template <class Arguments>
void add_job(CLI::App* verb, Arguments& arguments) {
  verb->add_option("--recipe", arguments.recipe, "Recipe (YAML); all keys have defaults")->type_name("FILE");
  verb->add_option("--data", arguments.data, "Data set, instead of the recipe's")->type_name("PATH");
  verb->add_option("--model", arguments.model, "Model: a name, or a TorchScript file")->type_name("NAME|FILE");
  verb->add_option("--plugin", arguments.plugins, "Library with your own models; may be repeated")
      ->type_name("FILE")
      ->expected(1, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
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
  add_json(verb, arguments.json);
  return verb;
}

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

template <class Action>
int guarded(const std::string& verb, Action action) {
  try {
    return action();
  } catch (const UsageError& error) {
    return usage(error.what(), verb);
  } catch (const std::bad_alloc&) {
    print_error("out of memory.");
  } catch (const std::exception& error) {
    print_error(user_message(error));
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

}  // namespace

int run(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error in words, as on a full disk
  std::signal(SIGBUS, on_bus_error);
  CLI::App app{"Bellows: trains faster with libtorch, and proves it.", "bellows"};
  app.set_version_flag("--version", std::string("bellows " BELLOWS_VERSION ", libtorch ") + this_machine().libtorch);
  app.get_formatter()->column_width(30);
  app.footer(overview);
  app.require_subcommand(1);
  TrainArguments train;
  LadderArguments ladder;
  DoctorArguments doctor;
  add_train(app, train);
  CLI::App* ladder_verb = add_ladder(app, ladder);
  CLI::App* doctor_verb = app.add_subcommand("doctor", "Look at the machine and libtorch")->footer(doctor_footer);
  add_json(doctor_verb, doctor.json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, argc, argv);
  }
  if (doctor_verb->parsed()) return guarded("doctor", [&] { return run_doctor(doctor); });
  bound_spinning(argv);
  return guarded(ladder_verb->parsed() ? "ladder" : "train", [&] {
    load_plugins(ladder_verb->parsed() ? ladder.plugins : train.plugins);
    return ladder_verb->parsed() ? run_ladder(ladder) : run_train(train);
  });
}

}  // namespace bellows::cli
