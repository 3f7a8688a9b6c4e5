#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/tap/allocator.h"
#include "bellows/train/data_split.h"
#include "bellows/train/ladder_job.h"
#include "bellows/train/ladder_page.h"
#include "bellows/train/ladder_process.h"
#include "bench/baseline/plain_libtorch.h"
#include "cli/interrupt.h"
#include "cli/ladder_table.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::LadderReport;
using train::Recipe;

/// Rung 0: the program in bench/baseline.
class PlainProgram final : public train::LadderJob {
 public:
  explicit PlainProgram(const plain_libtorch::Options& options) : training_((tap::install_cpu_allocator(), options)) {
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
  int64_t take_peak_bytes() override { return train::take_cpu_peak_bytes(); }
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

  plain_libtorch::Training training_;
  int64_t steps_ = 0;
};

/// The plain program trains one model on one data set. For others the same loop stands in: Bellows with all off.
bool plain_program_fits(const Recipe& recipe, const std::string& name) {
  Recipe like_it;  // what may differ
  like_it.data = recipe.data;
  like_it.image_size = recipe.image_size;
  like_it.batch_size = recipe.batch_size;
  like_it.lr = recipe.lr;
  like_it.momentum = recipe.momentum;
  like_it.weight_decay = recipe.weight_decay;
  like_it.seed = recipe.seed;
  like_it.epochs = recipe.epochs;
  like_it.target_accuracy = recipe.target_accuracy;
  like_it.log_every = recipe.log_every;
  return name == "digits" && train::without_techniques(like_it) == recipe;
}

/// Every job on the CPU has a process of its own; a device may not like to be shared by a fork.
class Jobs final : public train::LadderJobs {
 public:
  Jobs(Recipe base, const train::DataSplit& split)
      : base_(std::move(base)), plain_(split.held_out.empty() && plain_program_fits(base_, split.whole.info().name)) {
    with(base_, static_cast<uint64_t>(base_.seed));  // says what is missing before anything is printed
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
    const auto make = [recipe, seed] { return train::make_ladder_job(recipe, seed); };
    return recipe.device.starts_with("cpu") ? train::in_own_process(make) : make();
  }

 private:
  const Recipe base_;
  const bool plain_;
};

Recipe starting_recipe(const LadderArguments& arguments) {
  Recipe recipe = arguments.recipe.empty() ? Recipe{} : load_recipe(arguments.recipe);
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.model, .set = arguments.set});
  if (recipe.data.empty()) throw UsageError("ladder needs data: --data, or `data` in the recipe.");
  check_usable(recipe);
  return train::without_techniques(recipe);
}

bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  return !a.empty() && !b.empty() && fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

void check_targets(const LadderArguments& arguments) {
  if (arguments.list && !(arguments.json.empty() && arguments.html.empty())) {
    throw UsageError("--list measures nothing: leave out --json and --html.");
  }
  if (arguments.html == "-") throw UsageError("--html needs a file; standard output has the table.");
  if (same_file(arguments.json, arguments.html)) {
    throw UsageError("--json and --html name one file, " + arguments.html + ": give them two.");
  }
}

train::LadderOptions ladder_options(const LadderArguments& arguments, const Recipe& recipe) {
  train::LadderOptions options;
  options.seed = static_cast<uint64_t>(recipe.seed);
  options.goal = arguments.memory ? train::LadderGoal::memory : train::LadderGoal::speed;
  options.eval_every_steps = arguments.eval_every_steps;
  if (arguments.memory) options.pairs = options.max_pairs = 7;  // only to say what it costs
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

void print_start(Terminal& terminal, const Recipe& recipe, const train::LadderOptions& options,
                 const std::string& held_out, bool plain_program) {
  const Machine machine = this_machine();
  terminal.print(terminal.paint(Colour::bold, (options.goal == train::LadderGoal::memory ? "bellows ladder --memory: "
                                                                                         : "bellows ladder: ") +
                                                  recipe.model + " on " + recipe.data) +
                 "\n");
  for (const std::string& line :
       wrap(c10::str(machine.cpu, ", ", machine.torch_threads, machine.torch_threads == 1 ? " thread" : " threads",
                     ", libtorch ", machine.libtorch),
            79)) {
    terminal.print(line + "\n");
  }
  for (const std::string& line : wrap(
           c10::str("Each rung against the one below it: ", options.pairs,
                    options.max_pairs > options.pairs ? " or more" : "", " pairs of windows, training to ",
                    number("%.1f %%", 100 * options.target_accuracy), "; what changes the course of training, and the ",
                    "total, with ", options.seeds, options.seeds == 1 ? " seed." : " seeds."),
           79)) {
    terminal.print(line + "\n");
  }
  if (!held_out.empty()) {
    for (const std::string& line : wrap(held_out, 79)) terminal.print(line + "\n");
  }
  terminal.print("\n");
  if (!plain_program) {
    terminal.print(
        "Rung 0 is Bellows' loop with all techniques off: the plain program in\nbench/baseline trains digits_resnet "
        "only.\n\n");
  }
  terminal.print(terminal.paint(Colour::bold, ladder_head(options.goal)));
}

int measure(const LadderArguments& arguments, const Registry<train::Technique>& techniques) {
  const Recipe recipe = starting_recipe(arguments);
  const train::LadderOptions options = ladder_options(arguments, recipe);
  check_json_target(arguments.json);
  check_json_target(arguments.html);
  const bool quiet = arguments.json == "-";
  Terminal terminal;
  Interrupt interrupt("what was measured is kept");
  const train::DataSplit split = train::split_data(recipe);
  Jobs jobs(recipe, split);
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
  write_json(arguments.json, to_json(report));
  if (!arguments.html.empty()) write_text_file(arguments.html, train::ladder_page(report));
  for (const std::string& file : {arguments.json, arguments.html}) {
    if (!quiet && !file.empty()) terminal.print("Written: " + file + "\n");
  }
  if (report.interrupted) return Interrupt::exit_code();
  return report.failure.empty() ? exit_done : exit_failed;
}

}  // namespace

int run_ladder(const LadderArguments& arguments) {
  check_targets(arguments);
  Registry<train::Technique> techniques("technique");
  train::register_techniques(techniques);
  if (!arguments.list) return measure(arguments, techniques);
  Terminal().print(train::techniques_page(techniques));
  return exit_done;
}

}  // namespace bellows::cli
