#include <cmath>

#include "bellows/core/error.h"
#include "bellows/train/job.h"
#include "bellows/train/ladder_job.h"
#include "bench/baseline/plain_libtorch.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::LadderEvent;
using train::LadderReport;
using train::Recipe;
using train::RungResult;

/// Rung 0: the program in bench/baseline.
class PlainProgram final : public train::LadderJob {
 public:
  explicit PlainProgram(const plain_libtorch::Options& options) : training_(options) {}

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

 private:
  int64_t samples_at(int64_t step) const {
    const int64_t epochs = step / steps_per_epoch(), rest = step % steps_per_epoch();
    return epochs * training_.train_size() + rest * training_.batch();
  }

  plain_libtorch::Training training_;
  int64_t steps_ = 0;
};

/// The plain program trains one model on one data set. For others the same loop stands in: Bellows with all off.
bool plain_program_fits(const Recipe& recipe) {
  Recipe like_it;  // what may differ
  like_it.data = recipe.data;
  like_it.batch_size = recipe.batch_size;
  like_it.lr = recipe.lr;
  like_it.momentum = recipe.momentum;
  like_it.weight_decay = recipe.weight_decay;
  like_it.seed = recipe.seed;
  like_it.epochs = recipe.epochs;
  like_it.target_accuracy = recipe.target_accuracy;
  like_it.log_every = recipe.log_every;
  const std::string name = train::open_train_data(recipe).info().name;  // throws where there is no such data
  return name == "digits" && train::without_techniques(like_it) == recipe;
}

class Jobs final : public train::LadderJobs {
 public:
  explicit Jobs(Recipe base) : base_(std::move(base)), plain_(plain_program_fits(base_)) {
    train::make_ladder_job(base_,
                           static_cast<uint64_t>(base_.seed));  // says what is missing before anything is printed
  }

  bool plain_program() const { return plain_; }

  std::unique_ptr<train::LadderJob> plain(uint64_t seed) override {
    if (!plain_) return train::make_ladder_job(base_, seed);
    return std::make_unique<PlainProgram>(plain_libtorch::Options{.data = base_.data,
                                                                  .batch = base_.batch_size,
                                                                  .learning_rate = base_.lr,
                                                                  .momentum = base_.momentum,
                                                                  .weight_decay = base_.weight_decay,
                                                                  .seed = seed});
  }
  std::unique_ptr<train::LadderJob> with(const Recipe& recipe, uint64_t seed) override {
    return train::make_ladder_job(recipe, seed);
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

train::LadderOptions ladder_options(const LadderArguments& arguments, const Recipe& recipe) {
  train::LadderOptions options;
  options.seed = static_cast<uint64_t>(recipe.seed);
  if (recipe.target_accuracy > 0) options.target_accuracy = recipe.target_accuracy;
  if (arguments.target_accuracy > 0) options.target_accuracy = arguments.target_accuracy;
  if (arguments.max_seconds > 0) options.max_seconds = arguments.max_seconds;
  if (arguments.quick) {
    options.pairs = options.max_pairs = 5;
    options.window_s = 0.1;
    options.seeds = 1;
  }
  return options;
}

std::string percent(double share) {
  return number("%.1f %%", 100 * share);
}

std::string head_line() {
  return pad_right("technique", 17) + pad_left("step ms", 8) + pad_left("samples/s", 10) + pad_left("MiB", 7) +
         pad_left("target s", 9) + pad_left("acc. %", 7) + pad_left("speed-up", 10) + "\n";
}

const char* short_word(train::Verdict verdict) {
  switch (verdict) {
    case train::Verdict::kept:
      return "kept";
    case train::Verdict::no_effect:
      return "no effect";
    case train::Verdict::slower:
      return "slower";
    case train::Verdict::misses_target:
      return "misses";
    case train::Verdict::later_at_target:
      return "later";
    case train::Verdict::does_not_apply:
      return "skipped";
    case train::Verdict::not_measured:
      return "not run";
  }
  return "";
}

Colour colour_of(const RungResult& rung) {
  if (rung.kept()) return Colour::green;
  return rung.verdict == train::Verdict::no_effect ? Colour::dim : Colour::yellow;
}

/// One row, 78 letters at most.
std::string rung_line(const Terminal& terminal, const RungResult& rung) {
  const bool plain = rung.technique == "plain", measured = std::isfinite(rung.step_ms);
  const double half = (rung.speedup.high - rung.speedup.low) / 2;
  std::string speedup = plain ? "" : "-";
  if (measured && !plain) speedup = number("%.2f", rung.speedup.ratio) + "±" + number("%.2f", half);
  const double mebibytes = rung.peak_bytes > 0 ? static_cast<double>(rung.peak_bytes) / (1 << 20) : NAN;
  return pad_right(rung.title, 17) + pad_left(number("%.2f", rung.step_ms), 8) +
         pad_left(number("%.0f", rung.samples_per_s), 10) + pad_left(number("%.1f", mebibytes), 7) +
         pad_left(number("%.2f", rung.time_to_target_s), 9) + pad_left(number("%.1f", 100 * rung.accuracy), 7) +
         pad_left(speedup, 10) + (plain ? "" : " " + terminal.paint(colour_of(rung), short_word(rung.verdict))) + "\n";
}

void print_rung(Terminal& terminal, const RungResult& rung) {
  terminal.print(rung_line(terminal, rung));
  const bool explain = rung.verdict != train::Verdict::kept && rung.verdict != train::Verdict::no_effect;
  if (!explain) return;
  for (const std::string& line : wrap(rung.note, 76)) terminal.print(terminal.paint(Colour::dim, "  " + line) + "\n");
}

std::string times(const RatioInterval& ratio) {
  const std::string text = number("%.2f times", ratio.ratio);
  if (!std::isfinite(ratio.low)) return text + " (one seed)";
  return text + " (90 %: " + number("%.2f", ratio.low) + " to " + number("%.2f", ratio.high) + ")";
}

void print_foot(Terminal& terminal, const LadderReport& report) {
  if (report.interrupted) {
    terminal.print("\nStopped after " + format_seconds(report.seconds) + "; what stands above was measured.\n");
    return;
  }
  terminal.print("\nTime to " + percent(report.options.target_accuracy) +
                 " held out, against plain libtorch:  " + terminal.paint(Colour::bold, times(report.speedup)) +
                 "\nSamples/s at equal batch and learning rate:         " + times(report.speedup_equal_batch) + "\n");
}

void print_start(Terminal& terminal, const Recipe& recipe, const train::LadderOptions& options, bool plain_program) {
  const Machine machine = this_machine();
  terminal.print(terminal.paint(Colour::bold, "bellows ladder: " + recipe.model + " on " + recipe.data) + "\n");
  for (const std::string& line :
       wrap(c10::str(machine.cpu, ", ", machine.torch_threads, machine.torch_threads == 1 ? " thread" : " threads",
                     ", libtorch ", machine.libtorch),
            79)) {
    terminal.print(line + "\n");
  }
  terminal.print(c10::str("Each rung against the one below it: ", options.pairs, " or more pairs of windows, then ",
                          options.seeds, options.seeds == 1 ? " run" : " runs", " to ",
                          percent(options.target_accuracy), ".\n\n"));
  if (!plain_program) {
    terminal.print(
        "Rung 0 is Bellows' loop with all techniques off: the plain program in\nbench/baseline trains digits_resnet "
        "only.\n\n");
  }
  terminal.print(terminal.paint(Colour::bold, head_line()));
}

int measure(const LadderArguments& arguments, const Registry<train::Technique>& techniques) {
  const Recipe recipe = starting_recipe(arguments);
  const train::LadderOptions options = ladder_options(arguments, recipe);
  check_json_target(arguments.json);
  const bool quiet = arguments.json == "-";
  Terminal terminal;
  Interrupt interrupt("what was measured so far is kept");
  Jobs jobs(recipe);
  if (!quiet) print_start(terminal, recipe, options, jobs.plain_program());
  train::LadderInstruments instruments = train::real_instruments();
  instruments.stop = Interrupt::requested;
  const auto show = [&](const LadderEvent& event) {
    if (quiet) return;
    if (event.finished) {
      print_rung(terminal, *event.finished);
    } else {
      terminal.status(event.title + ": " + event.activity, c10::str(event.done, " of ", event.total));
    }
  };
  const LadderReport report =
      train::run_ladder(recipe, {techniques.rows().begin(), techniques.rows().end()}, jobs, options, instruments, show);
  if (!quiet) print_foot(terminal, report);
  write_json(arguments.json, to_json(report));
  if (!quiet && !arguments.json.empty()) terminal.print("Written: " + arguments.json + "\n");
  return report.interrupted ? Interrupt::exit_code() : exit_done;
}

}  // namespace

int run_ladder(const LadderArguments& arguments) {
  Registry<train::Technique> techniques("technique");
  train::register_first_techniques(techniques);
  if (!arguments.list) return measure(arguments, techniques);
  Terminal().print(train::techniques_page(techniques));
  return exit_done;
}

}  // namespace bellows::cli
