#include "bellows/tune/search.h"

#include <c10/util/Exception.h>
#include <poll.h>

#include <algorithm>
#include <memory>

#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "bellows/tune/remote_trial.h"
#include "bellows/tune/trial_process.h"

namespace bellows::tune {

namespace {

/// Trials without the objective after which the search ends, if there is no trial with it.
constexpr int64_t failures_before_end = 3;

class Search {
 public:
  Search(Study& study, const StudyFile& file, const SearchOptions& options)
      : study_(study),
        file_(file),
        options_(options),
        cores_(cores_of(options)),
        slots_(cores_.size() + options.remote.size()),
        sent_(options.remote.size()) {}

  ~Search() {
    for (size_t i = 0; i < sent_.size(); ++i) end_remote_trials(options_.remote[i], sent_[i]);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  int run() {
    // An earlier run may have been killed after it recorded its best trial and before it wrote the recipe.
    if (const Trial* best = best_trial(study_.trials())) write_best(*best);
    for (;;) {
      start_trials();
      if (std::none_of(slots_.begin(), slots_.end(), [](const auto& slot) { return bool(slot); })) return 0;
      wait();
      if (const int signal = stop_signal(signals_)) return signal;
      for (auto& slot : slots_) {
        if (slot) advance(slot);
      }
      check_objective();
    }
  }

 private:
  void start_trials() {
    const auto running = [&] {
      return std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) { return bool(slot); });
    };
    for (size_t i = 0; i < slots_.size(); ++i) {
      while (!slots_[i] && !exhausted_ && study_.finished() + running() < file_.trials) {
        start_trial(i);
        check_objective();  // trials can fail before they start
      }
    }
  }

  void start_trial(size_t slot) {
    const auto trial = study_.ask();
    if (!trial) return void(exhausted_ = true);
    try {
      slots_[slot] = begun(slot, *trial);
    } catch (const c10::ValueError& error) {
      study_.tell(trial->number, {.failure = failure_words(user_message(error))});  // keys that do not fit together
    }
    changed();
  }

  std::unique_ptr<RunningTrial> begun(size_t slot, const Trial& trial) {
    if (slot < cores_.size()) {
      return std::make_unique<TrialProcess>(file_, trial, trial_folder(options_.folder, trial.number),
                                            TrialProgram{options_.command, cores_[slot]}, signals_);
    }
    const size_t remote = slot - cores_.size();
    return remote_trial(options_.remote[remote], sent_[remote]++, trial);
  }

  void wait() {
    std::vector<pollfd> sources = {{signals_.fd(), POLLIN, 0}};
    for (const auto& slot : slots_) {
      if (!slot) continue;
      for (const int output : slot->outputs()) {
        if (output >= 0) sources.push_back({output, POLLIN, 0});
      }
    }
    constexpr int period_ms = 20;  // between two checks of the limits
    poll(sources.data(), sources.size(), period_ms);
  }

  void advance(std::unique_ptr<RunningTrial>& slot) {
    const bool ended = slot->ended();  // before watch(), which then reads everything that the trial wrote
    for (const TrialReport& report : slot->watch()) {
      if (study_.report(slot->number(), report) && slot->running()) {
        slot->prune();
        break;
      }
    }
    if (!ended) return;
    const Trial* before = best_trial(study_.trials());
    const int64_t best_before = before ? before->number : -1;
    study_.tell(slot->number(), slot->result());
    slot.reset();
    const Trial* best = best_trial(study_.trials());
    if (best && best->number != best_before) write_best(*best);
    changed();
  }

  void write_best(const Trial& best) const {
    train::Recipe recipe = recipe_of(file_, best.values);
    set_model(recipe, file_, best.values, options_.folder + "/best-model.json");
    write_text_file(options_.folder + "/best.yaml", recipe.to_yaml());
  }

  void check_objective() const {
    const std::vector<Trial>& trials = study_.trials();
    const auto ended = [](const Trial& trial) { return trial.state == TrialState::failed; };
    // Trials of earlier runs may have failed for a reason that no longer exists.
    const auto failures = std::count_if(trials.begin() + first_, trials.end(), ended);
    if (failures < std::min(failures_before_end, file_.trials)) return;
    if (std::ranges::any_of(trials, &Trial::succeeded)) return;
    const auto last = std::find_if(trials.rbegin(), trials.rend(), ended);
    TORCH_CHECK_VALUE(false, "tune: none of ", failures, " trials reported ", file_.study.objective,
                      file_.study.constraints.empty() ? "" : " and the constrained metrics", ". Trial ", last->number,
                      ": ", last->failure, ". Its output is in ", trial_folder(options_.folder, last->number),
                      "/output.txt.");
  }

  void changed() const {
    if (options_.on_change) options_.on_change(study_);
  }

  Study& study_;
  const StudyFile& file_;
  const SearchOptions& options_;
  const ptrdiff_t first_ = static_cast<ptrdiff_t>(study_.trials().size());  ///< first trial of this run
  const std::vector<std::vector<int>> cores_;
  const comm::Signals signals_;
  std::vector<std::unique_ptr<RunningTrial>> slots_;  ///< local ones first
  std::vector<int64_t> sent_;                         ///< number of trials that each remote slot has received
  bool exhausted_ = false;
};

}  // namespace

std::vector<std::vector<int>> cores_of(const SearchOptions& options) {
  const std::vector<std::vector<int>> all = divide_cores(options.jobs * options.parts);
  const auto first = all.begin() + static_cast<ptrdiff_t>(options.jobs * options.part);
  return {first, first + static_cast<ptrdiff_t>(options.jobs)};
}

int run_search(Study& study, const StudyFile& file, const SearchOptions& options) {
  return Search(study, file, options).run();
}

}  // namespace bellows::tune
