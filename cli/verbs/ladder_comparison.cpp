#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/ladder/comparison/comparison.h"
#include "bellows/ladder/html_report.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/json_report.h"
#include "bellows/ladder/process.h"
#include "bellows/ladder/rank_processes.h"
#include "bellows/train/recipe/recipe_overlay.h"
#include "bellows/train/resolved_job.h"
#include "cli/interrupt.h"
#include "cli/ladder_files.h"
#include "cli/options.h"
#include "cli/tables/comparison_table.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

using train::ComparedRecipe;
using train::Recipe;

class RankedRuns final : public train::ComparisonJobs {
 public:
  std::unique_ptr<train::LadderJob> with(const Recipe& recipe, uint64_t seed, int ranks, int64_t threads) override {
    if (ranks == 1) return train::ladder_job_in_own_process(recipe, seed);
    return train::ladder_job_on_ranks(recipe, seed, ranks, threads);
  }
};

/// FILE or FILE:RANKS.
std::pair<std::string, int> file_and_ranks(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text)) return {text, 1};
  int ranks = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, ranks);
  if (error != std::errc() || rest != end || ranks < 1 || ranks > 1024)
    throw UsageError(c10::str("--compare ", text, ": expected FILE or FILE:RANKS, where RANKS is an integer from 1 to ",
                              "1024, such as ddp.yaml:4."));
  return {text.substr(0, colon), ranks};
}

ComparedRecipe compared_file(const Recipe& base, const std::string& text) {
  const auto [file, ranks] = file_and_ranks(text);
  ComparedRecipe compared;
  compared.recipe = usable([&, &file = file] { return train::load_over(base, file); });
  check_usable(compared.recipe);
  compared.name = std::filesystem::path(file).stem().string();
  compared.title = ranks == 1 ? compared.name : c10::str(compared.name, ", ", ranks, " ranks");
  compared.ranks = ranks;
  compared.lossy = true;  // a recipe may change anything
  return compared;
}

/// Adds the number of ranks to names that are not unique, or that rung 0 has.
void make_names_unique(std::vector<ComparedRecipe>& recipes, const std::vector<std::string>& files) {
  std::map<std::string, int> counts = {{"plain", 1}};
  for (const ComparedRecipe& recipe : recipes) ++counts[recipe.name];
  std::map<std::string, std::string> taken;  // file by name
  for (size_t i = 0; i < recipes.size(); ++i) {
    if (counts[recipes[i].name] > 1) recipes[i].name += c10::str(":", recipes[i].ranks);
    const auto [other, is_new] = taken.emplace(recipes[i].name, files[i]);
    if (!is_new)
      throw UsageError(c10::str("--compare ", other->second, " ", files[i], ": both recipes have the name \"",
                                recipes[i].name, "\". Rename one of the files."));
  }
}

std::vector<ComparedRecipe> recipes_to_compare(const LadderArguments& arguments, const Recipe& recipe) {
  if (arguments.compare.empty()) {
    Registry<train::ParallelTechnique> techniques("technique");
    train::register_parallel_techniques(techniques);
    return train::parallel_recipes(recipe, static_cast<int>(arguments.ranks), techniques);
  }
  std::vector<ComparedRecipe> recipes;
  for (const std::string& file : arguments.compare) recipes.push_back(compared_file(recipe, file));
  make_names_unique(recipes, arguments.compare);
  return recipes;
}

void check_comparison_options(const LadderArguments& arguments) {
  const std::string own = arguments.compare.empty() ? "--ranks" : "--compare";
  if (arguments.ranks > 1 && !arguments.compare.empty())
    throw UsageError(
        "--ranks cannot be combined with --compare. Write the number of ranks after a file, as in "
        "--compare ddp.yaml:4.");
  for (const auto& [option, is_set] : {std::pair{"--memory", arguments.memory},
                                       {"--memory-target", arguments.memory_target > 0},
                                       {"--inference", !arguments.inference.empty()}}) {
    if (is_set) throw UsageError(std::string(option) + " cannot be combined with " + own + ".");
  }
  if (arguments.list && !arguments.compare.empty())
    throw UsageError("--list only describes the techniques. It cannot be combined with --compare.");
}

std::string threads_text(int64_t threads) {
  return threads == 1 ? "1 thread" : c10::str(threads, " threads");
}

/// How the ranks of the configurations share the threads of one process, and which settings are ignored.
std::string comparison_conditions(const ComparedRecipe& start, const std::vector<ComparedRecipe>& others,
                                  int64_t threads) {
  int most = 1;
  bool idle = false;
  for (const ComparedRecipe& other : others) {
    most = std::max(most, other.ranks);
    idle |= other.ranks <= threads && threads % other.ranks != 0;
  }
  std::string text;
  if (most > 1) text += "Several ranks share these threads. ";
  if (most > 1 && most <= threads && !idle) text += "So all configurations use the same number of cores. ";
  if (idle)
    text += c10::str("Some numbers of ranks do not divide the ", threads_text(threads),
                     ", so these configurations use fewer cores. Set OMP_NUM_THREADS to a multiple of the ranks. ");
  if (most > threads)
    text += c10::str("There are more ranks (", most, ") than threads (", threads,
                     "), so ranks share cores. The times do not show how training scales. ");
  if (start.recipe.batch_size_start > 0 || start.recipe.image_size_start > 0)
    text +=
        "batch_size_start and image_size_start are ignored: all configurations train with full batches and images. ";
  return text;
}

void print_comparison_start(Terminal& terminal, const LadderArguments& arguments, const ComparedRecipe& start,
                            const std::vector<ComparedRecipe>& others, const train::LadderOptions& options) {
  const int64_t threads = at::get_num_threads();
  const bool of_ranks = arguments.compare.empty();
  const std::string command =
      of_ranks ? c10::str("bellows ladder --ranks ", arguments.ranks) : "bellows ladder --compare";
  terminal.print(terminal.paint(Colour::bold, command + ": " + start.recipe.model + " on " + start.recipe.data) + "\n");
  print_machine(terminal);
  const std::string text = c10::str("Each configuration is compared with ", start.title, ", which has ",
                                    threads_text(threads), ". ", comparison_conditions(start, others, threads));
  terminal.print(wrapped(c10::str(
      text, "The configurations alternate in ", options.pairs, options.max_pairs > options.pairs ? " or more" : "",
      " pairs of timed windows, and then train to ", number("%.1f %%", 100 * options.target_accuracy),
      " accuracy with ", options.seeds, options.seeds == 1 ? " seed." : " seeds.")));
  terminal.print("\n" + terminal.paint(Colour::bold, comparison_head()));
}

int measure_comparison(const LadderArguments& arguments) {
  const Recipe asked = ladder_recipe(arguments);
  const train::LadderOptions options = ladder_options(arguments, asked);
  for (const std::string& file : {std::string(arguments.json), arguments.html, arguments.write_recipe})
    check_output_file(file);
  const Interrupt interrupt("keeping the results");
  const ComparedRecipe start{.name = "plain",
                             .title = arguments.compare.empty() ? "one process" : "the recipe",
                             .recipe = train::resolve(asked).recipe};
  const std::vector<ComparedRecipe> others = recipes_to_compare(arguments, start.recipe);
  const bool quiet = arguments.json == "-";
  Terminal terminal;
  if (!quiet) print_comparison_start(terminal, arguments, start, others, options);
  const auto show = [&](const train::LadderEvent& event) {
    if (quiet) return;
    if (event.finished) {
      terminal.print(comparison_row(terminal, *event.rung));
    } else {
      terminal.live(event.rung->title + ": " + event.activity, comparison_live_line(event));
    }
  };
  RankedRuns jobs;
  const train::LadderReport report = train::compare_recipes(start, others, at::get_num_threads(), jobs, options,
                                                            {.seconds = {}, .stop = Interrupt::requested}, show);
  if (!quiet) terminal.print(comparison_foot(terminal, report));
  write_ladder_files(terminal, arguments, {to_json(report), train::ladder_page(report), report.recipe_yaml});
  if (report.interrupted) return Interrupt::exit_code();
  return report.failure.empty() ? exit_done : exit_failed;
}

}  // namespace

int run_ladder_comparison(const LadderArguments& arguments) {
  check_comparison_options(arguments);
  if (!arguments.list) return measure_comparison(arguments);
  Registry<train::ParallelTechnique> techniques("technique");
  train::register_parallel_techniques(techniques);
  Terminal().print(train::techniques_page(techniques));
  return exit_done;
}

}  // namespace bellows::cli
