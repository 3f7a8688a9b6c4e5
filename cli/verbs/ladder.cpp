#include <algorithm>
#include <filesystem>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/ladder/html_report.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/plain_libtorch.h"
#include "bellows/ladder/process.h"
#include "bellows/system/file.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/resolved_job.h"
#include "cli/interrupt.h"
#include "cli/ladder_files.h"
#include "cli/options.h"
#include "cli/tables/ladder_table.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::LadderReport;
using train::Recipe;

/// Rung 0: the plain libtorch program.
class PlainProgram final : public train::LadderJob {
 public:
  explicit PlainProgram(const plain_libtorch::Options& options) : before_(live_bytes()), training_(options) {
    train::take_cpu_peak_bytes();
  }

  int64_t run_steps(int64_t n) override {
    training_.run_steps(n);
    // The last batch of an epoch is smaller: count what went through the model.
    const int64_t before = samples_at(steps_);
    steps_ += n;
    return samples_at(steps_) - before;
  }
  int64_t steps_per_epoch() const override { return training_.steps_per_epoch(); }
  int64_t samples_per_epoch() const override { return training_.train_size(); }
  double evaluate() override { return training_.evaluate(); }
  int64_t take_peak_bytes() override { return std::max<int64_t>(0, train::take_cpu_peak_bytes() - before_); }
  train::StepShares phases() override {
    const plain_libtorch::PhaseSeconds& seconds = training_.phase_seconds();
    return {.load_ms = 1e3 * seconds.load,
            .forward_ms = 1e3 * seconds.forward,
            .backward_ms = 1e3 * seconds.backward,
            .optimizer_ms = 1e3 * seconds.optimizer};
  }

 private:
  int64_t samples_at(int64_t step) const {
    const int64_t epochs = step / steps_per_epoch(), rest = step % steps_per_epoch();
    return epochs * training_.train_size() + rest * training_.batch();
  }

  static int64_t live_bytes() {
    tap::install_cpu_allocator();
    return tap::cpu_allocation_counters().current_bytes;
  }

  const int64_t before_;
  plain_libtorch::Training training_;
  int64_t steps_ = 0;
};

/// The plain program trains one model on one dataset. For others, Bellows with all techniques off replaces it.
bool plain_program_fits(const Recipe& recipe, const std::string& name) {
  Recipe like_it;  // the settings that may differ
  like_it.data = recipe.data;
  like_it.image_size = recipe.image_size;
  like_it.batch_size = recipe.batch_size;
  like_it.lr = recipe.lr;
  like_it.momentum = recipe.momentum;
  like_it.weight_decay = recipe.weight_decay;
  like_it.seed = recipe.seed;
  like_it.epochs = recipe.epochs;
  like_it.target_accuracy = recipe.target_accuracy;
  like_it.logging_steps = recipe.logging_steps;
  return name == "digits" && train::without_techniques(like_it) == recipe;
}

class TrainingJobs final : public train::LadderJobs {
 public:
  TrainingJobs(Recipe base, const train::DataSplit& split)
      : base_(std::move(base)), plain_(split.held_out.empty() && plain_program_fits(base_, split.whole.info().name)) {
    with(base_, static_cast<uint64_t>(base_.seed));  // reports missing data before anything is printed
  }

  bool plain_program() const { return plain_; }

  std::unique_ptr<train::LadderJob> plain(uint64_t seed) override {
    if (!plain_) return with(base_, seed);
    const plain_libtorch::Options options{.data = base_.data,
                                          .image_size = base_.image_size,
                                          .batch = base_.batch_size,
                                          .learning_rate = base_.lr,
                                          .momentum = base_.momentum,
                                          .weight_decay = base_.weight_decay,
                                          .seed = seed};
    return train::in_own_process([options] { return std::make_unique<PlainProgram>(options); });
  }
  std::unique_ptr<train::LadderJob> with(const Recipe& recipe, uint64_t seed) override {
    return train::ladder_job_in_own_process(recipe, seed);
  }

 private:
  const Recipe base_;
  const bool plain_;
};

Recipe starting_recipe(const LadderArguments& arguments) {
  return train::without_techniques(ladder_recipe(arguments));
}

bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  return !a.empty() && !b.empty() && fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

/// The options that name files, with these files.
std::vector<std::pair<const char*, std::string>> targets_of(const LadderArguments& arguments) {
  return {{"--json", arguments.json}, {"--html", arguments.html}, {"--write-recipe", arguments.write_recipe}};
}

void check_targets(const LadderArguments& arguments) {
  const auto targets = targets_of(arguments);
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto& [option, file] = targets[i];
    if (arguments.list && !file.empty())
      throw UsageError("--list only describes the techniques. It cannot be combined with " + std::string(option) + ".");
    if (i > 0 && file == "-")
      throw UsageError(std::string(option) +
                       " needs the name of a file, because the table is written to standard output.");
    for (size_t j = 0; j < i; ++j) {
      if (same_file(file, targets[j].second))
        throw UsageError(
            c10::str(targets[j].first, " and ", option, " name the same file, ", file, ". Choose different files."));
    }
  }
  if (arguments.memory && arguments.memory_target > 0)
    throw UsageError("--memory cannot be combined with --memory-target.");
  if (arguments.list && arguments.memory_target > 0)
    throw UsageError("--list only describes the techniques. It cannot be combined with --memory-target.");
}

}  // namespace

train::LadderOptions ladder_options(const LadderArguments& arguments, const Recipe& recipe) {
  train::LadderOptions options;
  options.seed = static_cast<uint64_t>(recipe.seed);
  options.goal = arguments.memory ? train::LadderGoal::memory : train::LadderGoal::speed;
  options.eval_every_steps = arguments.eval_every_steps;
  if (arguments.memory) options.pairs = options.max_pairs = 7;  // windows only measure the cost in time
  if (recipe.target_accuracy > 0) options.target_accuracy = recipe.target_accuracy;
  if (arguments.target_accuracy > 0) options.target_accuracy = arguments.target_accuracy;
  if (arguments.max_epochs > 0) options.max_epochs = arguments.max_epochs;
  if (arguments.max_seconds > 0) options.max_seconds = arguments.max_seconds;
  if (arguments.quick) {
    options.pairs = options.max_pairs = 5;
    options.window_s = 0.1;
    options.seeds = 1;
  }
  return options;
}

void print_machine(Terminal& terminal) {
  const Machine machine = this_machine();
  terminal.print(
      wrapped(c10::str(machine.cpu, ", ", machine.torch_threads, machine.torch_threads == 1 ? " thread" : " threads",
                       ", libtorch ", machine.libtorch)));
}

namespace {

void print_start(Terminal& terminal, const Recipe& recipe, const train::LadderOptions& options,
                 const std::string& held_out, bool plain_program) {
  terminal.print(terminal.paint(Colour::bold, (options.goal == train::LadderGoal::memory ? "bellows ladder --memory: "
                                                                                         : "bellows ladder: ") +
                                                  recipe.model + " on " + recipe.data) +
                 "\n");
  print_machine(terminal);
  terminal.print(wrapped(
      c10::str("Each technique is compared with the previous configuration: ", options.pairs,
               options.max_pairs > options.pairs ? " or more" : "", " pairs of timed windows, then training to ",
               number("%.1f %%", 100 * options.target_accuracy), " accuracy. The total, and techniques that ",
               "change the course of training, use ", options.seeds, options.seeds == 1 ? " seed." : " seeds.")));
  if (!held_out.empty()) terminal.print(wrapped(held_out));
  terminal.print("\n");
  if (!plain_program) {
    terminal.print(
        "Rung 0 is Bellows' training loop with all techniques off, because the plain\nlibtorch program only trains "
        "digits_resnet with SGD on the digits.\n\n");
  }
  terminal.print(terminal.paint(Colour::bold, ladder_head(options.goal)));
}

int measure(const LadderArguments& arguments, const Registry<train::Technique>& techniques) {
  const Recipe asked = starting_recipe(arguments);
  const train::LadderOptions options = ladder_options(arguments, asked);
  for (const auto& [option, file] : targets_of(arguments)) check_output_file(file);
  const bool quiet = arguments.json == "-";
  Terminal terminal;
  Interrupt interrupt("keeping the results");
  const train::ResolvedJob job = train::resolve(asked);
  const Recipe& recipe = job.recipe;
  const train::DataSplit& split = job.split();
  TrainingJobs jobs(recipe, split);
  if (!quiet) print_start(terminal, recipe, options, split.held_out_note(), jobs.plain_program());
  const auto show = [&](const train::LadderEvent& event) {
    if (quiet) return;
    if (event.finished) {
      terminal.print(ladder_row(terminal, *event.rung, options.goal));
    } else {
      terminal.live(event.rung->title + ": " + event.activity, ladder_live_line(event, options.goal));
    }
  };
  const LadderReport report = train::run_ladder(recipe, train::techniques_for(techniques, options.goal), jobs, options,
                                                {.seconds = {}, .stop = Interrupt::requested}, show);
  if (!quiet) terminal.print(ladder_foot(terminal, report));
  write_ladder_files(terminal, arguments, {to_json(report), train::ladder_page(report), report.recipe_yaml});
  if (report.interrupted) return Interrupt::exit_code();
  return report.failure.empty() ? exit_done : exit_failed;
}

void check_no_inference_options(const LadderArguments& arguments) {
  for (const auto& [option, is_set] : {std::pair{"--run", !arguments.run.empty()},
                                       {"--weights", !arguments.weights.empty()},
                                       {"--split", !arguments.split.empty()},
                                       {"--batch-size", arguments.batch_size > 0},
                                       {"--max-drop", arguments.max_drop >= 0}}) {
    if (is_set) throw UsageError(std::string(option) + " requires --inference.");
  }
}

}  // namespace

train::Recipe ladder_recipe(const LadderArguments& arguments) {
  Recipe recipe = arguments.recipe.empty() ? Recipe{} : load_recipe(arguments.recipe);
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.model, .set = arguments.set});
  if (recipe.data.empty()) throw UsageError("ladder needs a dataset. Pass --data, or set the key data in the recipe.");
  check_usable(recipe);
  return recipe;
}

void write_ladder_files(Terminal& terminal, const LadderArguments& arguments, const LadderFiles& files) {
  write_json(arguments.json, files.json);
  if (!arguments.html.empty()) write_text_file(arguments.html, files.html);
  const bool recipe = !arguments.write_recipe.empty() && !files.recipe.empty();
  if (recipe) write_text_file(arguments.write_recipe, files.recipe);
  if (arguments.json == "-") return;
  for (const std::string& file : {arguments.json, arguments.html, recipe ? arguments.write_recipe : ""}) {
    if (!file.empty()) terminal.print("Wrote " + file + "\n");
  }
}

int run_ladder(const LadderArguments& arguments) {
  // Several ranks would disturb each other's measurements and write the same files.
  if (!arguments.list) check_alone("ladder", ", because it measures times", "Run `bellows ladder` without a launcher.");
  check_targets(arguments);
  const bool compares = arguments.ranks > 1 || !arguments.compare.empty();
  if (!arguments.inference.empty() && !compares) return run_ladder_inference(arguments);
  check_no_inference_options(arguments);
  if (compares) return run_ladder_comparison(arguments);
  if (arguments.memory_target > 0) return run_ladder_target(arguments);
  Registry<train::Technique> techniques("technique");
  train::register_techniques(techniques);
  if (!arguments.list) return measure(arguments, techniques);
  Terminal().print(train::techniques_page(techniques));
  return exit_done;
}

}  // namespace bellows::cli
