#include "bellows/ladder/memory_target.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/ladder/chart.h"
#include "bellows/ladder/estimate.h"
#include "bellows/ladder/job.h"
#include "bellows/ladder/measurement.h"
#include "bellows/techniques/technique.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

namespace {

// Predicted peaks are within 5 %, but those with offloading are formulas only.
constexpr double prediction_margin = 1.1;
constexpr double close_by = 1.1;  // ratio of step times that single windows cannot distinguish
constexpr double nearly = 1.05, hopeless = 1.5;
constexpr size_t most_finalists = 3, last_resorts = 3;
constexpr size_t as_it_is = 0;  // index of the unchanged recipe

void check_target(const std::vector<PlanCandidate>& candidates, const MemoryTarget& target) {
  TORCH_CHECK_VALUE(!candidates.empty(), "find_recipe_under: expected at least one candidate, the unchanged recipe.");
  TORCH_CHECK_VALUE(target.bytes > 0, "find_recipe_under: expected a target above 0 bytes, got ", target.bytes, ".");
  TORCH_CHECK_VALUE(target.target_accuracy >= 0 && target.target_accuracy <= 1,
                    "find_recipe_under: expected target_accuracy in [0, 1], got ", target.target_accuracy, ".");
  TORCH_CHECK_VALUE(target.windows >= 1 && target.pairs >= 5 && target.window_s > 0 && target.max_epochs >= 1,
                    "find_recipe_under: expected at least 1 window, 5 pairs and 1 epoch, and window_s above 0, got ",
                    target.windows, ", ", target.pairs, ", ", target.max_epochs, " and ", target.window_s, ".");
}

class TargetSearch {
 public:
  TargetSearch(const std::vector<PlanCandidate>& candidates, LadderJobs& jobs, const MemoryTarget& target,
               const LadderInstruments& instruments, std::function<void(const MemoryTargetEvent&)> on_event)
      : candidates_(candidates),
        rung_of_(candidates.size()),
        jobs_(jobs),
        on_event_(std::move(on_event)),
        alone_{.target_accuracy = target.target_accuracy,
               .max_epochs = target.max_epochs,
               .pairs = target.windows,
               .max_pairs = target.windows,
               .window_s = target.window_s},
        in_turns_(alone_),
        measure_(alone_, instruments, candidates[as_it_is].recipe.batch_size, [this](const auto& news) { show(news); }),
        compare_(in_turns_, instruments, candidates[as_it_is].recipe.batch_size,
                 [this](const auto& news) { show(news); }),
        evaluations_(candidates) {
    in_turns_.pairs = in_turns_.max_pairs = target.pairs;
    report_.machine = this_machine();
    report_.model = candidates[as_it_is].recipe.model;
    report_.data = candidates[as_it_is].recipe.data;
    report_.target = target;
    report_.rungs.reserve(candidates.size());  // events point to its elements
  }

  MemoryTargetReport run() {
    start_ = measure_.seconds();
    try {
      measure_start();
      if (!choose_among({as_it_is}))
        choose_among(alike(false)) || choose_among(alike(true)) || choose_among(smallest_ones());
    } catch (const LadderStopped&) {
      report_.interrupted = true;
      report_.certain = false;
    }
    count_the_rest();
    report_.seconds = measure_.seconds() - start_;
    return std::move(report_);
  }

 private:
  // ---- candidates

  TargetRung& rung(size_t candidate) { return report_.rungs[*rung_of_[candidate]]; }
  bool fits(size_t candidate) { return rung_of_[candidate] && rung(candidate).verdict == TargetVerdict::fits; }

  std::vector<size_t> alike(bool other_training) const {
    std::vector<size_t> result;
    for (size_t i = 1; i < candidates_.size(); ++i) {
      if (candidates_[i].other_training == other_training && !too_large(i)) result.push_back(i);
    }
    return result;
  }

  double predicted(size_t candidate) const {
    return scale_ * static_cast<double>(candidates_[candidate].predicted_bytes);
  }
  bool too_large(size_t candidate) const {
    return predicted(candidate) > prediction_margin * static_cast<double>(report_.target.bytes) ||
           evaluations_.above(candidate, report_.target.bytes, scale_);
  }

  /// If no candidate is predicted to fit, returns the smallest ones, which may fit after all. If they are far off,
  /// returns one, to show the distance.
  std::vector<size_t> smallest_ones() {
    last_resort_ = true;
    std::vector<size_t> result;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 1; i < candidates_.size(); ++i) {
      if (rung_of_[i] || evaluations_.above(i, report_.target.bytes, scale_)) continue;
      least = std::min(least, predicted(i));
      result.push_back(i);
    }
    std::erase_if(result, [&](size_t i) { return predicted(i) > nearly * least; });
    std::ranges::stable_sort(result, [this](size_t a, size_t b) { return expected_ms(a) < expected_ms(b); });
    const bool out_of_reach = least > hopeless * static_cast<double>(report_.target.bytes);
    result.resize(std::min(result.size(), out_of_reach ? 1 : last_resorts));
    return result;
  }

  /// Whether a candidate cannot be faster than one that fits, because it only adds measures to it.
  bool only_adds(size_t candidate) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (fits(i) && adds_to(candidates_[candidate].measures, candidates_[i].measures) &&
          !(times_.estimate_ms(candidates_[candidate]) < times_.estimate_ms(candidates_[i])))
        return true;
    }
    return false;
  }

  double best_ms() {
    double best = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (fits(i)) best = std::min(best, rung(i).step_ms);
    }
    return best;
  }

  /// Before the first measurement, candidates are ordered by the table's factors.
  double expected_ms(size_t candidate) const {
    const double ms = times_.estimate_ms(candidates_[candidate]);
    return std::isfinite(ms) ? ms : candidates_[candidate].time_factor;
  }

  std::optional<size_t> next_of(const std::vector<size_t>& group) {
    std::optional<size_t> next;
    for (const size_t i : group) {
      if (rung_of_[i] || (!last_resort_ && too_large(i)) || only_adds(i)) continue;
      if (!next || expected_ms(i) < expected_ms(*next)) next = i;
    }
    if (next && expected_ms(*next) > close_by * best_ms()) return {};
    return next;
  }

  bool time_is_up() const { return measure_.seconds() - start_ > report_.target.max_seconds; }

  // ---- measurements

  void show(const MeasureProgress& news) {
    if (!on_event_ || !now_) return;
    on_event_({.rung = &rung(*now_), .activity = activity_, .done = news.done, .total = news.total});
  }

  std::unique_ptr<LadderJob> job(size_t candidate) {
    return jobs_.with(at_full_size(candidates_[candidate].recipe), report_.target.seed);
  }

  void begin(size_t candidate, const char* activity) {
    now_ = candidate;
    activity_ = activity;
    show({.activity = activity});
  }

  void measure_start() {
    const auto available = static_cast<double>(report_.machine.memory_available_bytes);
    if (available > 0 && predicted(as_it_is) > 0.9 * available) {
      TargetRung& start = add_rung(as_it_is);
      start.verdict = TargetVerdict::too_large;
      start.note = c10::str("not measured, because its predicted peak is ", format_bytes(predicted(as_it_is)),
                            " and only ", format_bytes(available), " are free");
      announce(start);
      return;
    }
    measure(as_it_is);
  }

  TargetRung& add_rung(size_t candidate) {
    rung_of_[candidate] = report_.rungs.size();
    return report_.rungs.emplace_back(TargetRung{.candidate = candidates_[candidate]});
  }

  void announce(const TargetRung& result, const char* activity = "measured") {
    if (on_event_) on_event_({.rung = &result, .activity = activity, .finished = true});
  }

  void measure(size_t candidate) {
    TargetRung& result = add_rung(candidate);
    begin(candidate, "windows");
    try {
      const auto run = job(candidate);
      run->take_peak_bytes();  // discards the peak of earlier jobs
      run->run_steps(3);
      const TimedWindows windows = measure_.windows({run.get()});
      result.peak_bytes = run->take_peak_bytes();
      result.step_ms = step_ms(candidate, windows.seconds_per_sample[0]);
      result.verdict = result.peak_bytes <= report_.target.bytes ? TargetVerdict::fits : TargetVerdict::too_large;
      learn(candidate);
    } catch (const c10::Error& error) {  // the run diverged or does not fit into the machine's memory
      result.verdict = TargetVerdict::failed;
      result.note = user_message(error);
    }
    announce(result);
  }

  void learn(size_t candidate) {
    const TargetRung& result = rung(candidate);
    times_.learn(candidates_[candidate], result.step_ms);
    if (!scaled_ && candidates_[candidate].predicted_bytes > 0)
      scale_ = static_cast<double>(result.peak_bytes) / static_cast<double>(candidates_[candidate].predicted_bytes);
    scaled_ = true;
  }

  double step_ms(size_t candidate, const std::vector<double>& seconds_per_sample) const {
    const Recipe& recipe = candidates_[candidate].recipe;
    return 1e3 * median(seconds_per_sample) *
           static_cast<double>(recipe.batch_size * recipe.gradient_accumulation_steps);
  }

  // ---- choice

  /// Measures the candidates of a group that may be the fastest that fit, and chooses one.
  bool choose_among(const std::vector<size_t>& group) {
    while (true) {
      while (const auto next = next_of(group)) {
        if (time_is_up()) {
          report_.certain = false;
          break;
        }
        measure(*next);
      }
      const auto finalists = the_fastest();
      if (finalists.empty()) return false;
      if (std::ranges::count_if(finalists, [this](size_t i) { return !evaluates_below(i); }) > 0) continue;
      const size_t winner = in_turns(finalists);
      if (winner != as_it_is && report_.target.target_accuracy > 0 && !reaches(winner)) continue;
      rung(winner).verdict = TargetVerdict::chosen;
      report_.recipe_yaml = candidates_[winner].recipe.to_yaml();
      announce(rung(winner), "chosen");
      return true;
    }
  }

  std::vector<size_t> the_fastest() {
    std::vector<size_t> result;
    const double best = best_ms();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (fits(i) && rung(i).step_ms <= close_by * best) result.push_back(i);
    }
    std::ranges::sort(result, [this](size_t a, size_t b) { return rung(a).step_ms < rung(b).step_ms; });
    if (result.size() > most_finalists) result.resize(most_finalists);
    return result;
  }

  /// Whether memory suffices to run these recipes at the same time.
  bool side_by_side(const std::vector<size_t>& some) {
    double bytes = 0;
    for (const size_t i : some) bytes += static_cast<double>(rung(i).peak_bytes);
    const auto available = static_cast<double>(report_.machine.memory_available_bytes);
    return available == 0 || bytes < 0.8 * available;
  }

  /// The recipes that alternate: the finalists, then the unchanged recipe; fewer if memory is short.
  std::vector<size_t> who_take_turns(const std::vector<size_t>& finalists) {
    std::vector<size_t> all = finalists;
    if (std::isfinite(rung(as_it_is).step_ms)) all.push_back(as_it_is);
    if (!side_by_side(all) && all.back() == as_it_is) all.pop_back();
    while (all.size() > 1 && !side_by_side(all)) all.pop_back();
    return all;
  }

  /// Returns: the fastest; among those without a significant difference, the one with the fewest changes
  size_t in_turns(const std::vector<size_t>& finalists) {
    if (finalists.front() == as_it_is) return as_it_is;
    const std::vector<size_t> all = who_take_turns(finalists);
    if (all.size() < 2) return all.front();
    const TimedWindows windows = windows_of(all);
    const auto& seconds = windows.seconds_per_sample;
    const bool with_start = all.back() == as_it_is;
    std::vector<size_t> changes;
    for (size_t i = 0; i < all.size(); ++i) {
      rung(all[i]).step_ms = step_ms(all[i], seconds[i]);
      if (with_start && i + 1 == all.size()) continue;
      if (with_start) rung(all[i]).time_over_start = paired_ratio(seconds[i], seconds.back());
      changes.push_back(candidates_[all[i]].techniques.size());
    }
    return all[fastest_with_fewest_changes(seconds, changes)];
  }

  TimedWindows windows_of(const std::vector<size_t>& all) {
    begin(all.front(), "in turns");
    std::vector<std::unique_ptr<LadderJob>> runs;
    std::vector<LadderJob*> pointers;
    for (const size_t i : all) {
      runs.push_back(job(i));
      pointers.push_back(runs.back().get());
    }
    return compare_.windows(pointers);
  }

  /// Checks that the peak during evaluation is below the limit.
  bool evaluates_below(size_t candidate) {
    if (std::ranges::find(evaluated_, candidate) != evaluated_.end()) return true;
    evaluated_.push_back(candidate);
    TargetRung& result = rung(candidate);
    begin(candidate, "evaluation");
    try {
      const auto run = job(candidate);
      run->run_steps(1);
      run->take_peak_bytes();
      run->evaluate();
      result.evaluation_bytes = run->take_peak_bytes();
      result.peak_bytes = std::max(result.peak_bytes, result.evaluation_bytes);
    } catch (const c10::Error& error) {
      return refuse(result, TargetVerdict::failed, user_message(error));
    }
    if (result.evaluation_bytes <= report_.target.bytes) return true;
    evaluations_.add(candidate, result.evaluation_bytes);
    return refuse(result, TargetVerdict::too_large,
                  format_bytes(static_cast<double>(result.evaluation_bytes)) + " during evaluation");
  }

  bool reaches(size_t candidate) {
    TargetRung& result = rung(candidate);
    begin(candidate, "target");
    try {
      Recipe recipe = candidates_[candidate].recipe;
      recipe.run_folder.clear();
      const auto with = [&](uint64_t seed) { return jobs_.with(recipe, seed); };
      const TargetRun run = measure_.to_target(with, report_.target.seed, "target", /*rough=*/true);
      result.accuracy = run.accuracy;
      result.peak_bytes = std::max(result.peak_bytes, run.peak_bytes);
      if (!run.reached)
        return refuse(result, TargetVerdict::misses_target,
                      c10::str("accuracy ", run.accuracy, " after ", format_seconds(run.seconds), " of training"));
      result.time_to_target_s = run.seconds;
    } catch (const c10::Error& error) {
      return refuse(result, TargetVerdict::failed, user_message(error));
    }
    if (result.peak_bytes > report_.target.bytes)
      return refuse(result, TargetVerdict::too_large,
                    format_bytes(static_cast<double>(result.peak_bytes)) + " later in training");
    return true;
  }

  bool refuse(TargetRung& result, TargetVerdict verdict, std::string note) {
    result.verdict = verdict;
    result.note = std::move(note);
    announce(result, "refused");
    return false;
  }

  void count_the_rest() {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (rung_of_[i]) continue;
      (too_large(i) ? report_.predicted_too_large : report_.certain ? report_.expected_slower : report_.left) += 1;
    }
  }

  const std::vector<PlanCandidate>& candidates_;
  std::vector<std::optional<size_t>> rung_of_;  ///< index of the rung of each measured candidate
  LadderJobs& jobs_;
  std::function<void(const MemoryTargetEvent&)> on_event_;
  const LadderOptions alone_;
  LadderOptions in_turns_;
  LadderMeasure measure_, compare_;
  MemoryTargetReport report_;
  StepTimes times_;
  double scale_ = 1;  ///< measured over predicted peak
  bool scaled_ = false, last_resort_ = false;
  double start_ = 0;
  std::vector<size_t> evaluated_;
  EvaluationPeaks evaluations_;
  std::optional<size_t> now_;  ///< the candidate in progress
  std::string activity_;
};

// ---- the result in words

std::string bytes_words(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// "1.06× slower than the unchanged recipe (90 % interval 1.02 to 1.10)". Params: ratio – of the times of a step
std::string compared_words(const RatioInterval& ratio) {
  if (!std::isfinite(ratio.ratio)) return "";
  const bool slower = ratio.ratio >= 1;
  const double low = slower ? ratio.low : 1 / ratio.high, high = slower ? ratio.high : 1 / ratio.low;
  return chart_number("%.2f× ", slower ? ratio.ratio : 1 / ratio.ratio) + (slower ? "slower" : "faster") +
         " than the unchanged recipe (90 % interval " + chart_number("%.2f", low) + " to " +
         chart_number("%.2f", high) + ")";
}

/// How the choice changes the results: one paragraph, or none.
void add_caveats(std::vector<std::string>& words, const TargetRung& choice, double target_accuracy) {
  std::string text;
  bool lossy = false;
  for (const std::string& name : choice.candidate.techniques) {
    const Technique& technique = technique_table().at(name);
    if (technique.exactness == Exactness::exact) continue;
    text += c10::str(text.empty() ? "The results are not bit-identical. " : " ", technique.title, ": ",
                     technique.tolerance, ".");
    lossy = true;
  }
  if (lossy) words.push_back(text);
  if (lossy && target_accuracy == 0)
    words.emplace_back("The accuracy was not measured. Set target_accuracy to train the chosen recipe to it.");
}

std::string choice_words(const MemoryTargetReport& report, const TargetRung& choice) {
  const std::string peak =
      c10::str("the peak is ", bytes_words(choice.peak_bytes), " of ", bytes_words(report.target.bytes));
  if (&choice == &report.rungs.front()) return "The unchanged recipe fits: " + peak + ". No change is needed.";
  std::string text = "Chosen: " + choice.candidate.changes + ". T" + peak.substr(1);
  const TargetRung& start = report.rungs.front();
  if (start.peak_bytes > 0) text += "; that of the unchanged recipe is " + bytes_words(start.peak_bytes);
  text += ". A step takes " + format_seconds(1e-3 * choice.step_ms);
  const std::string compared = compared_words(choice.time_over_start);
  text += compared.empty() ? "." : ", " + compared + ".";
  if (std::isfinite(choice.time_to_target_s))
    text += c10::str(" The recipe reached an accuracy of ", report.target.target_accuracy, " after ",
                     format_seconds(choice.time_to_target_s), " of training.");
  return text;
}

std::string failure_words(const MemoryTargetReport& report) {
  const TargetRung* least = report.smallest();
  const bool missed = std::ranges::any_of(
      report.rungs, [](const TargetRung& rung) { return rung.verdict == TargetVerdict::misses_target; });
  std::string text =
      c10::str("No recipe fits into ", bytes_words(report.target.bytes),
               missed ? c10::str(" and reaches an accuracy of ", report.target.target_accuracy) : "", ".");
  if (least) {
    const std::string& changes = least->candidate.changes;
    text += c10::str(" The smallest measured peak is ", bytes_words(least->peak_bytes), ": ",
                     changes == "nothing" ? "the unchanged recipe" : changes, ".");
  }
  int64_t evaluation = 0;
  for (const TargetRung& rung : report.rungs) {
    if (rung.evaluation_bytes > report.target.bytes && (evaluation == 0 || rung.evaluation_bytes < evaluation))
      evaluation = rung.evaluation_bytes;
  }
  if (evaluation > 0)
    text += " Some recipes fit during training, but need " + bytes_words(evaluation) + " or more during evaluation.";
  return text + " Use a smaller model, smaller images, or ZeRO on several ranks. `bellows plan` predicts their effect.";
}

}  // namespace

std::string_view to_string(TargetVerdict verdict) {
  static constexpr std::string_view words[] = {"chosen", "fits",        "too large", "did not reach the target",
                                               "failed", "not measured"};
  return words[static_cast<size_t>(verdict)];
}

const TargetRung* MemoryTargetReport::chosen() const {
  const auto found = std::ranges::find(rungs, TargetVerdict::chosen, &TargetRung::verdict);
  return found == rungs.end() ? nullptr : &*found;
}

const TargetRung* MemoryTargetReport::smallest() const {
  const TargetRung* least = nullptr;
  for (const TargetRung& rung : rungs) {
    if (rung.peak_bytes > 0 && (!least || rung.peak_bytes < least->peak_bytes)) least = &rung;
  }
  return least;
}

MemoryTargetReport find_recipe_under(const std::vector<PlanCandidate>& candidates, LadderJobs& jobs,
                                     const MemoryTarget& target, const LadderInstruments& instruments,
                                     const std::function<void(const MemoryTargetEvent&)>& on_event) {
  check_target(candidates, target);
  return TargetSearch(candidates, jobs, target, instruments, on_event).run();
}

std::string not_measured_words(const MemoryTargetReport& report) {
  std::vector<std::string> parts;
  const auto add = [&parts](int64_t count, const char* why) {
    if (count > 0) parts.push_back(c10::str(count, why));
  };
  add(report.predicted_too_large, " predicted to exceed the target");
  add(report.expected_slower, " expected to be slower");
  add(report.left, " because of the time limit");
  return parts.empty() ? "" : "Recipes that were not measured: " + c10::Join(", ", parts) + ".";
}

std::vector<std::string> target_words(const MemoryTargetReport& report) {
  std::vector<std::string> words;
  if (report.interrupted) {
    words.push_back(c10::str("Stopped after ", format_seconds(report.seconds), ". Only the results so far are shown."));
    return words;
  }
  const TargetRung* choice = report.chosen();
  words.push_back(choice ? choice_words(report, *choice) : failure_words(report));
  if (choice) add_caveats(words, *choice, report.target.target_accuracy);
  if (std::string rest = not_measured_words(report); !rest.empty()) words.push_back(std::move(rest));
  if (!report.certain)
    words.emplace_back("The time limit was reached, so a recipe that was not measured may be faster or may fit.");
  return words;
}

}  // namespace bellows::train
