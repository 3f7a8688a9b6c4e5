#include "bellows/ladder/memory_target.h"

#include <cmath>

#include "bellows/core/stats.h"
#include "bellows/ladder/html_report.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/process.h"
#include "bellows/train/resolved_job.h"
#include "cli/interrupt.h"
#include "cli/ladder_files.h"

namespace bellows::cli {

namespace {

using train::Recipe;
using train::TargetRung;
using train::TargetVerdict;

class RecipeJobs final : public train::LadderJobs {
 public:
  explicit RecipeJobs(Recipe base) : base_(std::move(base)) {}
  std::unique_ptr<train::LadderJob> plain(uint64_t seed) override { return with(base_, seed); }
  std::unique_ptr<train::LadderJob> with(const Recipe& recipe, uint64_t seed) override {
    return train::ladder_job_in_own_process(recipe, seed);
  }

 private:
  const Recipe base_;
};

/// The side of images for the plan: that of the data if the recipe does not resize them; 0: the model's usual size.
int64_t image_side(const train::ResolvedJob& job) {
  if (job.model.input != models::InputKind::image || job.recipe.image_size > 0) return 0;
  const std::vector<int64_t>& size = job.split().whole.info().image_size;
  return size.empty() ? 0 : size.front();
}

train::MemoryTarget target_of(const LadderArguments& arguments, const Recipe& recipe) {
  train::MemoryTarget target;
  target.bytes = static_cast<int64_t>(arguments.memory_target);
  target.seed = static_cast<uint64_t>(recipe.seed);
  target.target_accuracy = arguments.target_accuracy > 0 ? arguments.target_accuracy : recipe.target_accuracy;
  if (arguments.max_epochs > 0) target.max_epochs = arguments.max_epochs;
  if (arguments.max_seconds > 0) target.max_seconds = arguments.max_seconds;
  if (arguments.quick) {
    target.pairs = 5;
    target.window_s = 0.1;
  }
  return target;
}

constexpr size_t name_width = 40;

std::string target_head() {
  return pad_right("recipe", name_width) + pad_left("peak MiB", 9) + pad_left("predicted", 11) +
         pad_left("step ms", 9) + "\n";
}

std::string mebibytes(int64_t bytes) {
  return bytes > 0 ? number("%.2f", static_cast<double>(bytes) / (1 << 20)) : "-";
}

/// The changes to the recipe, in words.
std::string changes_text(const TargetRung& rung) {
  const std::string& changes = rung.candidate.changes;
  return changes == "nothing" ? "unchanged recipe" : changes;
}

/// A row of at most 79 columns. A long name takes several lines; the numbers are in the last one.
std::string target_row(const Terminal& terminal, const TargetRung& rung) {
  std::string text;
  std::vector<std::string> names = wrap(changes_text(rung), name_width);
  for (size_t i = 0; i + 1 < names.size(); ++i) text += names[i] + "\n";
  const bool fits = rung.verdict == TargetVerdict::fits;
  text +=
      pad_right(names.back(), name_width) + pad_left(mebibytes(rung.peak_bytes), 9) +
      pad_left(mebibytes(rung.candidate.predicted_bytes), 11) + pad_left(number("%.2f", rung.step_ms), 9) + " " +
      terminal.paint(fits ? Colour::green : Colour::yellow,
                     rung.peak_bytes == 0 && rung.verdict == TargetVerdict::too_large ? "" : to_string(rung.verdict)) +
      "\n";
  return rung.note.empty() ? text : text + terminal.paint(Colour::dim, wrapped(rung.note, "  "));
}

void show_event(Terminal& terminal, const train::MemoryTargetEvent& event) {
  const std::string name = changes_text(*event.rung);
  if (!event.finished) {
    const std::string count = event.total > 0 ? c10::str(" ", event.done, "/", event.total) : "";
    terminal.live(name + ": " + event.activity, name + ": " + event.activity + count);
  } else if (event.activity == "measured") {
    terminal.print(target_row(terminal, *event.rung));
  } else if (event.activity == "refused") {
    terminal.print(wrapped(c10::str(name, ": ", to_string(event.rung->verdict), ", ", event.rung->note, ".")));
  }
}

void print_target_start(Terminal& terminal, const Recipe& recipe, const train::MemoryTarget& target,
                        const std::string& held_out, size_t candidates) {
  const std::string size = format_bytes(static_cast<double>(target.bytes));
  const std::string title = "bellows ladder --memory-target " + size + ": " + recipe.model + " on " + recipe.data;
  terminal.print(terminal.paint(Colour::bold, wrapped(title)));
  print_machine(terminal);
  terminal.print(wrapped(c10::str("Predicted the memory of ", candidates, " recipes. Those that may fit into ", size,
                                  " are measured, in the order of their expected speed.")));
  if (!held_out.empty()) terminal.print(wrapped(held_out));
  terminal.print("\n" + terminal.paint(Colour::bold, target_head()));
}

}  // namespace

int run_ladder_target(const LadderArguments& arguments) {
  const Recipe recipe = ladder_recipe(arguments);
  const train::MemoryTarget target = target_of(arguments, recipe);
  for (const std::string& file : {arguments.json, arguments.html, arguments.write_recipe}) check_output_file(file);
  const bool quiet = arguments.json == "-";
  Terminal terminal;
  Interrupt interrupt("keeping the results");
  const train::ResolvedJob job = train::resolve(recipe);
  RecipeJobs jobs(recipe);
  jobs.plain(target.seed);  // reports missing data before anything is printed
  if (!quiet) terminal.status("predicting the peak memory of all recipes", "");
  const auto candidates = train::candidates_in_own_process(recipe, image_side(job));
  if (!quiet) print_target_start(terminal, recipe, target, job.split().held_out_note(), candidates.size());
  const auto show = [&](const train::MemoryTargetEvent& event) {
    if (!quiet) show_event(terminal, event);
  };
  const train::MemoryTargetReport report =
      train::find_recipe_under(candidates, jobs, target, {.seconds = {}, .stop = Interrupt::requested}, show);
  const bool found = report.chosen() != nullptr;
  const std::vector<std::string> words = target_words(report);
  if (!quiet) {
    for (size_t i = found || report.interrupted ? 0 : 1; i < words.size(); ++i)
      terminal.print("\n" + wrapped(words[i]));
  }
  write_ladder_files(terminal, arguments, {to_json(report), ladder_page(report), report.recipe_yaml});
  if (report.interrupted) return Interrupt::exit_code();
  if (!found) print_error(words.front());
  return found ? exit_done : exit_failed;
}

}  // namespace bellows::cli
