#include "bellows/train/trainer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "bellows/checkpoint/folder.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"

namespace bellows::train {

namespace {

using Clock = std::chrono::steady_clock;

// A record as a row of numbers, in the order of its members.
constexpr int64_t record_width = 8;

void append(std::vector<double>& row, const EpochRecord& r) {
  row.insert(row.end(), {static_cast<double>(r.epoch), static_cast<double>(r.steps), r.train_loss, r.train_accuracy,
                         r.eval_loss, r.eval_accuracy, r.train_seconds, r.eval_seconds});
}

EpochRecord record_of(const double* row) {
  return {static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), row[2], row[3], row[4], row[5], row[6], row[7]};
}

at::Tensor to_tensor(const std::vector<double>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<double>());
  return tensor;
}

std::vector<double> to_vector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string loss_text(double loss) {
  char text[48];
  std::snprintf(text, sizeof(text), "loss %.4f", loss);
  return text;
}

/// Lines of `recipe` that are not in `other`.
std::vector<std::string> different_lines(const std::string& recipe, const std::string& other) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < recipe.size();) {
    const size_t end = recipe.find('\n', begin);
    const std::string line = recipe.substr(begin, end - begin);
    if (("\n" + other).find("\n" + line + "\n") == std::string::npos) result.push_back(line);
    begin = end == std::string::npos ? recipe.size() : end + 1;
  }
  return result;
}

/// One fit, from its first step to its last.
class Run {
 public:
  Run(Job job, const Callbacks& callbacks, const std::atomic<bool>& stop)
      : loop_(std::move(job)), recipe_(loop_.job().recipe), callbacks_(callbacks), stop_(stop) {
    TORCH_CHECK_VALUE(recipe_.target_accuracy == 0 || loop_.job().eval,
                      "fit: target_accuracy is set, but there is no held-out data to measure it on. Set eval_data.");
    if (!recipe_.checkpoint_folder.empty()) folder_.emplace(recipe_.checkpoint_folder, recipe_.keep_checkpoints);
  }

  void begin(bool resume);
  FitResult go();

 private:
  bool done() const { return epoch_ >= recipe_.epochs || result_.reached_target; }
  void train_epoch();
  void finish_epoch();
  void read_losses();
  void note_target();
  void check_recipe_of(const checkpoint::State& state) const;
  void save();
  checkpoint::State state() const;
  void restore(const checkpoint::State& state);

  TrainLoop loop_;
  const Recipe& recipe_;
  const Callbacks& callbacks_;
  const std::atomic<bool>& stop_;
  std::optional<checkpoint::Folder> folder_;
  FitResult result_;
  int64_t epoch_ = 0;  ///< the one whose record is in progress; the loop may already stand at the next one's start
  std::vector<double> losses_;  ///< of its steps so far
  double epoch_seconds_ = 0;    ///< of its steps so far
  int64_t saved_step_ = -1;
};

void Run::begin(bool resume) {
  if (!folder_) {
    TORCH_CHECK_VALUE(!resume, "fit: nothing to resume from: the recipe has no checkpoint_folder.");
    return;
  }
  const auto existing = folder_->list();
  TORCH_CHECK_VALUE(resume || existing.empty(), "fit: ", folder_->path(), " holds ", existing.size(),
                    " checkpoints of an earlier run. Resume it, remove them, or choose another checkpoint_folder.");
  const auto newest = folder_->newest();
  if (!newest) {
    if (resume) log_info("resume: no checkpoint in ", folder_->path(), "; the run begins at its start.");
    return;
  }
  check_recipe_of(*newest);
  restore(*newest);
  result_.checkpoint = folder_->path_of(newest->step);
  log_info("resume: from step ", newest->step, " (epoch ", newest->epoch + 1, ", batch ", newest->batch, ") in ",
           folder_->path(), ".");
}

void Run::check_recipe_of(const checkpoint::State& state) const {
  const std::vector<std::string> now = different_lines(recipe_.to_yaml(), state.recipe);
  const std::vector<std::string> then = different_lines(state.recipe, recipe_.to_yaml());
  std::string changed;
  for (const std::string& line : now) {
    const std::string key = line.substr(0, line.find(':'));
    if (key == "checkpoint_folder") continue;  // a run may be moved or copied
    const bool decides_order = key == "batch_size" || key == "seed" || key == "bad_samples";
    const auto before =
        std::find_if(then.begin(), then.end(), [&](const std::string& l) { return l.starts_with(key + ":"); });
    TORCH_CHECK_VALUE(!decides_order || state.batch == 0, "resume: the checkpoint stands inside epoch ",
                      state.epoch + 1, " (batch ", state.batch, "), and the recipe says ", line, ", where it said ",
                      before == then.end() ? "nothing" : *before,
                      ": the rest of the epoch would be other samples. Resume with the old value; change it after an "
                      "epoch's end.");
    changed += (changed.empty() ? "" : ", ") + line;
  }
  if (!changed.empty()) log_warn("resume: the recipe differs from the checkpoint's; now: ", changed);
}

FitResult Run::go() {
  while (!done() && !stop_) {
    if (loop_.epoch() == epoch_) train_epoch();
    if (loop_.epoch() > epoch_ && !stop_) finish_epoch();
  }
  result_.stopped = stop_ && !done();
  if (folder_ && saved_step_ != loop_.step_count()) save();
  result_.steps = loop_.step_count();
  return std::move(result_);
}

void Run::train_epoch() {
  const int64_t left = loop_.job().train.size() - loop_.batch() * loop_.job().train.loader_options().batch_size;
  Progress progress(c10::str("epoch ", epoch_ + 1, "/", recipe_.epochs), left, "samples");
  std::string detail;
  while (loop_.epoch() == epoch_ && !stop_) {
    const auto begin = Clock::now();
    loop_.step();
    const bool at_end = loop_.epoch() != epoch_;
    if (at_end || loop_.step_count() % recipe_.log_every == 0) {
      const size_t known = losses_.size();
      read_losses();
      detail = loss_text(mean({losses_.begin() + static_cast<std::ptrdiff_t>(known), losses_.end()}));
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    epoch_seconds_ += seconds;
    result_.train_seconds += seconds;
    progress.advance(loop_.last_batch_size(), detail);
    if (callbacks_.on_step) callbacks_.on_step(loop_);
    if (folder_ && recipe_.checkpoint_every > 0 && loop_.step_count() % recipe_.checkpoint_every == 0) save();
  }
}

void Run::read_losses() {
  const std::vector<double> fresh = loop_.take_losses();
  losses_.insert(losses_.end(), fresh.begin(), fresh.end());
}

void Run::finish_epoch() {
  EpochRecord record{.epoch = epoch_,
                     .steps = loop_.step_count(),
                     .train_loss = mean(losses_),
                     .train_accuracy = loop_.take_accuracy(),
                     .train_seconds = epoch_seconds_};
  if (loop_.job().eval) {
    const Evaluation evaluation = loop_.evaluate();
    record.eval_loss = evaluation.loss;
    record.eval_accuracy = evaluation.accuracy;
    record.eval_seconds = evaluation.seconds;
  }
  result_.history.push_back(record);
  note_target();
  ++epoch_;
  losses_.clear();
  epoch_seconds_ = 0;
  if (folder_ && (recipe_.checkpoint_every == 0 || done())) save();
  if (callbacks_.on_epoch) callbacks_.on_epoch(record);
}

void Run::note_target() {
  if (recipe_.target_accuracy == 0 || result_.history.empty()) return;
  if (result_.history.back().eval_accuracy < recipe_.target_accuracy) return;
  result_.reached_target = true;
  result_.time_to_target_s = result_.train_seconds;
}

void Run::save() {
  read_losses();  // throws before a bad state takes a good one's place
  result_.checkpoint = folder_->save(state());
  saved_step_ = loop_.step_count();
}

checkpoint::State Run::state() const {
  checkpoint::State state = loop_.state();
  std::vector<double> history;
  for (const EpochRecord& record : result_.history) append(history, record);
  state.extra.emplace_back("history", to_tensor(history).view({-1, record_width}));
  state.extra.emplace_back("epoch_losses", to_tensor(losses_));
  state.extra.emplace_back("epoch_seconds",
                           to_tensor({static_cast<double>(epoch_), epoch_seconds_, result_.train_seconds}));
  return state;
}

void Run::restore(const checkpoint::State& state) {
  loop_.restore(state);
  for (const auto& [name, tensor] : state.extra) {
    if (name == "epoch_losses") losses_ = to_vector(tensor);
    if (name == "epoch_seconds") {
      const std::vector<double> values = to_vector(tensor);
      epoch_ = static_cast<int64_t>(values.at(0));
      epoch_seconds_ = values.at(1);
      result_.train_seconds = values.at(2);
    }
    if (name == "history") {
      TORCH_CHECK_VALUE(tensor.dim() == 2 && (tensor.size(0) == 0 || tensor.size(1) == record_width),
                        "resume: the checkpoint's history has shape ", tensor.sizes(), ", expected [epochs, ",
                        record_width, "]. It was written by another version; start the run anew.");
      const std::vector<double> rows = to_vector(tensor);
      for (size_t i = 0; i < rows.size(); i += record_width) result_.history.push_back(record_of(rows.data() + i));
    }
  }
  saved_step_ = state.step;
  note_target();
}

}  // namespace

Trainer::Trainer(Recipe recipe, Callbacks callbacks) : recipe_(std::move(recipe)), callbacks_(std::move(callbacks)) {
  recipe_.validate();
}

FitResult Trainer::fit() {
  return fit(make_job(recipe_));
}

FitResult Trainer::fit(const Model& model, torch::optim::Optimizer& optimizer, LossFn loss_fn, data::Dataset train_data,
                       std::optional<data::Dataset> eval_data) {
  TORCH_CHECK_VALUE(!precision_policy(recipe_).low_weights, "fit: precision_level ", recipe_.precision_level,
                    " changes the model itself: put yours under amp::apply() and set precision_level O1, or let fit() "
                    "make the job from the recipe.");
  place_model(recipe_, model);
  // The caller keeps the optimizer; the job only borrows it.
  const std::shared_ptr<torch::optim::Optimizer> borrowed(std::shared_ptr<void>(), &optimizer);
  return fit(Job{recipe_, model, borrowed, std::move(loss_fn), std::move(train_data), std::move(eval_data)});
}

FitResult Trainer::fit(Job job) {
  struct Reset {  // a stop is for one fit, however that ends
    std::atomic<bool>& stop;
    ~Reset() { stop = false; }
  } reset{stop_};
  Run run(std::move(job), callbacks_, stop_);
  run.begin(resume_);
  return run.go();
}

Evaluation Trainer::evaluate(const Model& model, const data::Dataset& data) const {
  data::Loader loader = data.channels_last(recipe_.channels_last).loader();
  return train::evaluate(model, loader, recipe_);
}

}  // namespace bellows::train
