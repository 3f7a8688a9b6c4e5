#include "bellows/train/trainer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>

#include "bellows/comm/collectives.h"
#include "bellows/comm/launch/launch_environment.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/core/seed.h"
#include "bellows/data/fingerprint.h"
#include "bellows/optim/state/state.h"
#include "bellows/system/file.h"
#include "bellows/system/stop.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/run/rank_changes.h"
#include "bellows/train/run/resume_check.h"
#include "bellows/train/run/run_folder.h"
#include "bellows/train/run/run_log.h"
#include "bellows/train/run/run_record.h"
#include "bellows/train/run/step_trace.h"
#include "bellows/train/step/state_copy.h"

namespace bellows::train {

namespace {

using Clock = std::chrono::steady_clock;

// Converts a record to a row of numbers in the order of its members, followed by the metrics.
constexpr int64_t record_members = 8;

void append(std::vector<double>& row, const EpochRecord& r, size_t metrics) {
  row.insert(row.end(), {static_cast<double>(r.epoch), static_cast<double>(r.steps), r.train_loss, r.train_accuracy,
                         r.eval_loss, r.eval_accuracy, r.train_seconds, r.eval_seconds});
  for (size_t i = 0; i < metrics; ++i)
    row.push_back(i < r.eval_metrics.size() ? r.eval_metrics[i].second : std::numeric_limits<double>::quiet_NaN());
}

EpochRecord record_of(const double* row, const std::vector<std::string>& metrics) {
  EpochRecord record{
      static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), row[2], row[3], row[4], row[5], row[6], row[7]};
  for (size_t i = 0; i < metrics.size(); ++i) {
    const double value = row[record_members + i];
    if (record.eval_seconds > 0) record.eval_metrics.emplace_back(metrics[i], value);
  }
  return record;
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

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check_folder_keys(const Recipe& recipe) {
  const bool needs_one = !recipe.trace_steps.empty() || recipe.save_top_k > 0 || recipe.save_steps > 0;
  TORCH_CHECK_VALUE(!needs_one || !recipe.run_folder.empty(),
                    "fit: trace_steps, save_top_k and save_steps write files, so they need run_folder.");
}

/// Runs one fit of a Trainer, from its first step or last checkpoint to its end.
class FitRun {
 public:
  FitRun(Job job, const Callbacks& callbacks, const std::atomic<bool>& stop, bool is_new);

  void begin(bool resume, bool accept_changes);
  void begin_elastic(bool resume, bool accept_changes);
  FitResult go();

 private:
  bool done() const;
  bool stopped();
  bool is_first();
  void open_folder();
  void check_resumes(const checkpoint::State& state, bool accept_changes);
  void join_run();
  void open_log(int64_t last_step);
  void save_last();
  void join_next_world(Job& job);
  void start_elastic(Job job);
  void put_initial_state(const Job& job);
  void run_elastic();
  bool lost_rank(const std::exception& error);
  int64_t progress() const;
  void rejoin();
  void keep_for_rejoin();
  void note_start();
  void seed_for_world();
  void say_unused_keys();
  void say_cut_texts();
  void warn_about_other_weights();
  void write_step();
  void run_epochs();
  void train_epoch();
  void take_step();
  void finish_epoch();
  void report_epoch();
  void read_losses();
  void log_step();
  void evaluate();
  void log_evaluation();
  void note(const Evaluation& evaluation);
  void save();
  void save_sample_stats();
  NamedTensors note_tensors() const;
  RunFolder::Notes notes() const;
  void restore(const checkpoint::State& state, bool own_options, bool own = false);
  std::vector<double> numbers() const;
  void restore_numbers(const std::vector<double>& values);

  Recipe recipe_;  ///< of the loop, which may have replaced automatic values
  const std::shared_ptr<comm::ElasticWorld> elastic_;
  const bool is_new_;  ///< this process took the place of a lost one, and had no state of the job before
  /// State that is kept while the ranks join another world.
  struct Kept {
    std::vector<Version> versions;
    Job job;
  };
  std::optional<Kept> kept_;
  /// At the starts of the last two steps, if the state is sharded.
  struct Start {
    int64_t step, progress;
    NamedTensors notes;
  };
  std::deque<Start> starts_;
  /// The state before the first step, until all ranks have begun. When sharding ends, no rank has complete weights.
  struct Initial {
    NamedTensors model;
    std::vector<NamedTensors> optimizers;
  };
  std::optional<Initial> initial_;
  Newest joined_;                          ///< from the ranks that this process joined
  std::optional<EpochRecord> unreported_;  ///< the last epoch, until on_epoch was called
  bool saving_ = false;                    ///< the last checkpoint may be incomplete
  std::optional<TrainLoop> loop_;
  const Callbacks& callbacks_;
  const std::atomic<bool>& stop_;
  std::optional<RunFolder> folder_;
  std::optional<RunLog> log_;
  std::optional<StepTrace> trace_;
  RunRecord record_;
  FitResult result_;
  /// The epoch of the record in progress; the loop may already be at the start of the next one.
  int64_t epoch_ = 0;
  std::vector<double> losses_;  ///< of the epoch's steps so far
  std::vector<double> fresh_;   ///< of the steps after those in losses_, which were not logged yet
  double recent_loss_ = 0;      ///< mean of the losses that were read last
  double epoch_seconds_ = 0;    ///< of the epoch's steps so far
  double epoch_eval_seconds_ = 0;
  Evaluation last_evaluation_;
  int64_t evaluated_step_ = -1, saved_step_ = -1;
  double best_loss_ = std::numeric_limits<double>::infinity();  ///< over all evaluations
  bool said_cut_texts_ = false, said_other_weights_ = false;
  int64_t not_better_ = 0;  ///< number of evaluations since the best one
};

FitRun::FitRun(Job job, const Callbacks& callbacks, const std::atomic<bool>& stop, bool is_new)
    : recipe_(job.recipe), elastic_(job.elastic), is_new_(is_new), callbacks_(callbacks), stop_(stop) {
  if (elastic_) {
    start_elastic(std::move(job));
  } else {
    loop_.emplace(std::move(job));
  }
  recipe_ = loop_->job().recipe;
  const bool needs_evaluation = recipe_.target_accuracy > 0 || recipe_.eval_steps > 0 ||
                                recipe_.early_stopping_patience > 0 || recipe_.save_top_k > 0 ||
                                recipe_.lr_schedule == "plateau";
  TORCH_CHECK_VALUE(!needs_evaluation || loop_->job().eval,
                    "fit: target_accuracy, eval_steps, early_stopping_patience, save_top_k and lr_schedule plateau "
                    "need held-out data. Set eval_split or eval_data.");
  TORCH_CHECK_VALUE(recipe_.target_accuracy == 0 || loop_->job().task.has_accuracy(),
                    "fit: target_accuracy needs a task with an accuracy, got loss = ", recipe_.loss, ".");
  check_folder_keys(recipe_);
  if (!folder_) open_folder();
}

void FitRun::open_folder() {
  if (!recipe_.run_folder.empty()) folder_.emplace(recipe_, loop_->ranks().group());
}

/// Begins again if a rank is lost meanwhile.
void FitRun::begin_elastic(bool resume, bool accept_changes) {
  for (;;) {
    try {
      begin(resume, accept_changes);
      return initial_.reset();
    } catch (const std::exception& error) {
      if (!lost_rank(error)) throw;
      Job job = loop_->job();
      join_next_world(job);
      start_elastic(std::move(job));
    }
  }
}

void FitRun::begin(bool resume, bool accept_changes) {
  if (is_first() && loop_->ranks().size() > 1) log_info(loop_->ranks().describe());
  for (const std::string& words : {loop_->replicas().describe(), loop_->activations().describe()}) {
    if (is_first() && !words.empty()) log_info(words);
  }
  say_unused_keys();
  if (!folder_) {
    TORCH_CHECK_VALUE(!resume, "fit: the run cannot resume, because the recipe has no run_folder.");
    trace_.emplace("", "");  // refuses requests for traces
    if (joined_.version) join_run();
    return;
  }
  const DataPrints* const compared = loop_->ranks().data_prints();
  const DataPrints prints = compared ? *compared : data_prints(loop_->job());
  record_ = this_run(recipe_, prints.train);
  record_.facts["ranks"] = std::to_string(loop_->ranks().size());
  if (loop_->job().eval) record_.facts["eval_data"] = prints.eval;
  const size_t existing = folder_->count();
  TORCH_CHECK_VALUE(
      resume || joined_.version || existing == 0, "fit: ", folder_->path(), " contains ", existing,
      " checkpoints of an earlier run. Resume that run, remove the checkpoints, or choose another run_folder.");
  if (joined_.version) {
    join_run();
  } else if (const auto newest = folder_->newest()) {
    check_resumes(*newest, accept_changes);
    restore(*newest, accept_changes);
    saved_step_ = newest->step;
    result_.checkpoint = folder_->path_of(newest->step);
    log_info("resume: continuing from step ", newest->step, " (epoch ", newest->epoch + 1, ", batch ", newest->batch,
             ") in ", folder_->path(), ".");
  } else if (resume) {
    log_info("resume: no checkpoint in ", folder_->path(), ". Training starts from the beginning.");
  }
  trace_.emplace(recipe_.trace_steps, folder_->path(), loop_->ranks().group());
  if (!is_first()) return;
  open_log(saved_step_);
  write_text_file(folder_->path() + "/recipe.yaml", recipe_.to_yaml());  // after the last check that may throw
  write_text_file(folder_->path() + "/run.json", to_json(record_));
  if (saved_step_ < 0) log_->text("recipe", "```yaml\n" + recipe_.to_yaml() + "```", 0);
}

/// Rank 0 compares, because the environment was recorded on its machine. All ranks throw its error.
void FitRun::check_resumes(const checkpoint::State& state, bool accept_changes) {
  std::string reason;
  try {
    if (is_first()) check_resume(state, record_, accept_changes);
  } catch (const c10::ValueError& error) {
    reason = user_message(error);
  }
  if (const comm::Group* ranks = loop_->ranks().group()) reason = comm::broadcast_string(reason, 0, *ranks);
  TORCH_CHECK_VALUE(reason.empty(), reason);
}

/// Continues from the state of ranks that were already training.
void FitRun::join_run() {
  restore(joined_.version->state, false, /*own=*/true);
  seed_for_world();
  if (joined_.save && folder_) save();
}

void FitRun::open_log(int64_t last_step) {
  log_.emplace(recipe_.log, folder_->path(), last_step);
}

/// Keys whose values have no effect in this run.
void FitRun::say_unused_keys() {
  if (!is_first()) return;
  if (!recipe_.metrics.empty() && !loop_->job().eval)
    log_warn("train: metrics = ", recipe_.metrics,
             " has no effect, because there is no held-out data. Set eval_split or eval_data.");
  if (!recipe_.offload_shard_folder.empty() && loop_->ranks().size() == 1)
    log_warn("train: offload_shard_folder = ", recipe_.offload_shard_folder,
             " has no effect, because one process shards nothing. Start several ranks with `bellows launch`.");
  if (ranks_per_sample(recipe_) > 1 && loop_->ranks().size() == 1)
    log_warn("train: mesh = ", recipe_.mesh,
             " has no effect, because one process divides nothing. Start several ranks with `bellows launch`.");
  const int64_t steps = loop_->total_steps();
  if (recipe_.quantize != "none" && recipe_.quantize_start_step >= steps)
    log_warn("train: quantize = ", recipe_.quantize,
             " has no effect, because quantize_start_step = ", recipe_.quantize_start_step, ", but the run has only ",
             steps, " steps. Set quantize_start_step to less than ", steps, ", or train for more epochs.");
  if (recipe_.batch_norm_freeze_step >= steps && recipe_.batch_norm_freeze_step > 0)
    log_warn("train: batch_norm_freeze_step = ", recipe_.batch_norm_freeze_step,
             " has no effect, because the run has only ", steps, " steps. Set it to less than ", steps,
             ", or train for more epochs.");
}

bool FitRun::is_first() {
  return loop_->ranks().rank() == 0;
}

// With several ranks, all end after the same step if one of them was asked to stop.
bool FitRun::stopped() {
  return loop_->ranks().size() > 1 ? loop_->stop() : stop_.load();
}

bool FitRun::done() const {
  return epoch_ >= recipe_.epochs || result_.reached_target || result_.stopped_early;
}

void FitRun::run_epochs() {
  while (!done() && !stopped()) {
    report_epoch();  // if saving its checkpoint failed
    if (loop_->rejoin()) {
      if (folder_) folder_->wait();
      saving_ = false;
      rejoin();
    }
    if (loop_->epoch() == epoch_) train_epoch();
    if (loop_->epoch() > epoch_ && !stopped() && !done() && !loop_->rejoin()) finish_epoch();
  }
}

void FitRun::save_last() {
  if (folder_ && saved_step_ != loop_->step_count()) save();
  if (folder_) folder_->wait();
  saving_ = false;
}

/// Destroys what uses the current ranks, and gives the job those of the next world.
void FitRun::join_next_world(Job& job) {
  elastic_->leave();  // ends collectives in the background, so that they do not delay the destructors
  folder_.reset();
  if (loop_) job = loop_->take_job();
  loop_.reset();
  elastic_->rejoin();
  job.ranks = elastic_->world().group();
  if (callbacks_.on_ranks) callbacks_.on_ranks(elastic_->world());
}

/// Creates the loop, also if ranks are lost meanwhile.
void FitRun::start_elastic(Job job) {
  for (;;) {
    try {
      joined_ = newest_state(*job.ranks, ranks_per_replica(recipe_), {.is_new = is_new_});
      job.state_follows = joined_.version.has_value();
      if (!job.state_follows && ranks_per_replica(recipe_) > 1) put_initial_state(job);
      loop_.emplace(job);
      return open_folder();
    } catch (const std::exception& error) {
      if (!lost_rank(error)) throw;
      join_next_world(job);
    }
  }
}

/// Keeps the job's initial state, or restores it after an attempt that failed.
void FitRun::put_initial_state(const Job& job) {
  const bool first = !initial_;
  if (first) initial_.emplace(Initial{.model = job.model.state_dict(), .optimizers = {}});
  for (auto& [name, tensor] : initial_->model) {
    if (first) tensor = tensor.detach().clone();
  }
  if (!first) checkpoint::restore_model(job.model, initial_->model);
  for (size_t i = 0; i < job.optimizers.size(); ++i) {
    if (!first) {
      optim::load_state_dict(*job.optimizers[i], initial_->optimizers[i]);
      continue;
    }
    initial_->optimizers.push_back(optim::state_dict(*job.optimizers[i]));
    for (auto& [name, tensor] : initial_->optimizers.back()) tensor = tensor.detach().clone();
  }
}

/// Runs to the end, also if ranks are lost.
void FitRun::run_elastic() {
  for (bool lost = false;; lost = true) {
    try {
      if (lost) rejoin();
      run_epochs();
      save_last();
      return loop_->ranks().gather_parameters();
    } catch (const std::exception& error) {
      if (!lost_rank(error)) throw;
    }
  }
}

/// Returns whether the launcher has announced the loss of a rank, which is then the cause of the error.
bool FitRun::lost_rank(const std::exception& error) {
  const bool own = dynamic_cast<const Stopped*>(&error) || dynamic_cast<const c10::ValueError*>(&error);
  if (own || !elastic_->lost_rank()) return false;
  log_warn("A rank was lost. ", user_message(error));
  return true;
}

/// How far this rank is: the step, and then whether it has evaluated and finished the epoch.
int64_t FitRun::progress() const {
  return progress_per_step * loop_->step_count() + (loop_->epoch() == epoch_ ? 2 : 0) +
         (evaluated_step_ == loop_->step_count() ? 1 : 0);
}

/// Continues with the ranks of the next world. After an exception, it can be called again.
void FitRun::rejoin() {
  if (!kept_) keep_for_rejoin();
  join_next_world(kept_->job);
  if (elastic_->was_left_out()) kept_->versions.clear();
  const OwnState own{.versions = kept_->versions, .is_new = true, .saving = saving_};
  const Newest newest = newest_state(*kept_->job.ranks, ranks_per_replica(recipe_), own);
  TORCH_CHECK(newest.version, "train: all ranks that held the state of the run were lost. Start the job again.");
  kept_->versions = {*newest.version};
  kept_->job.state_follows = true;
  loop_.emplace(kept_->job);
  open_folder();
  restore(newest.version->state, false, /*own=*/true);
  if (newest.version->state.rng.empty()) seed_for_world();
  said_other_weights_ = false;  // a new rank takes part in the comparison
  kept_.reset();
  record_.facts["ranks"] = std::to_string(loop_->ranks().size());
  if (is_first() && folder_ && !log_) open_log(loop_->step_count());
  if (is_first())
    log_info(loop_->ranks().size() > 1 ? loop_->ranks().describe() : "1 rank", ", from step ", loop_->step_count() + 1);
  if (newest.save && folder_) save();
}

/// Copies the state, because a rank that joins may overwrite the model before all ranks have agreed.
void FitRun::keep_for_rejoin() {
  loop_->undo_step();
  const std::vector<double> losses = loop_->take_losses();
  fresh_.insert(fresh_.end(), losses.begin(), losses.end());
  Kept kept{.versions = {}, .job = loop_->job()};
  const auto keep = [&](int64_t progress, checkpoint::State state, const NamedTensors& notes) {
    state.extra.insert(state.extra.end(), notes.begin(), notes.end());
    kept.versions.push_back({.progress = progress, .state = std::move(state)});
  };
  if (!loop_->update_failed()) {
    checkpoint::State copy;
    copy_state(loop_->own_state(), copy);
    keep(progress(), std::move(copy), note_tensors());
  }
  if (const auto& before = loop_->state_before_update()) {
    for (const Start& start : starts_) {
      if (start.step == before->step) keep(start.progress, *before, start.notes);
    }
  }
  starts_.clear();
  kept_.emplace(std::move(kept));
}

/// Keeps the notes that belong to TrainLoop::state_before_update().
void FitRun::note_start() {
  const std::vector<double> losses = loop_->take_losses();
  fresh_.insert(fresh_.end(), losses.begin(), losses.end());
  if (!starts_.empty() && starts_.back().step == loop_->step_count()) starts_.pop_back();  // there was no batch left
  starts_.push_back({.step = loop_->step_count(), .progress = progress(), .notes = note_tensors()});
  if (starts_.size() > 2) starts_.pop_front();
}

/// New generators for a rank whose state came from another rank.
void FitRun::seed_for_world() {
  const auto seed = static_cast<uint64_t>(recipe_.seed), generation = static_cast<uint64_t>(elastic_->generation());
  seed_everything(mix_seed(seed, generation, static_cast<uint64_t>(loop_->ranks().rank())));
}

FitResult FitRun::go() {
  try {
    elastic_ ? run_elastic() : run_epochs();
  } catch (const Stopped&) {  // while waiting for data
    if (!stopped() || !loop_->between_steps() || loop_->ranks().size() > 1) throw;
  }
  result_.stopped = stopped() && !done();
  if (result_.stopped && !stop_) log_warn("stopped, because another rank received a stop signal.");
  save_last();
  save_sample_stats();
  result_.steps = loop_->step_count();
  result_.skipped_steps = loop_->skipped_steps();
  if (evaluated_step_ >= 0) result_.evaluation = last_evaluation_;
  if (log_ && done()) {
    NamedValues values{{"accuracy", last_evaluation_.accuracy}, {"loss", last_evaluation_.loss}};
    if (std::isnan(last_evaluation_.accuracy)) values.erase(values.begin());
    values.insert(values.end(), last_evaluation_.metrics.begin(), last_evaluation_.metrics.end());
    log_->hyperparameters(recipe_, values, loop_->step_count());
  }
  loop_->ranks().complete_parameters();
  return std::move(result_);
}

void FitRun::save_sample_stats() {
  if (!folder_ || !loop_->sample_stats()) return;
  // The ids and the fingerprint refer to the complete dataset.
  const data::Dataset& train = loop_->job().train;
  const bool whole = train.size() == train.source()->id_bound();
  const std::string source = whole                        ? record_.data
                             : !recipe_.subset.empty()    ? data::load_subset(recipe_.subset).source
                             : !loop_->job().note.empty() ? data::fingerprint(resolve(recipe_).split().whole)
                                                          : "";
  loop_->sample_stats()->save(folder_->path() + "/sample_stats.safetensors", source);
}

void FitRun::train_epoch() {
  const int64_t left = loop_->job().train.size() - loop_->batch() * loop_->batch_size();
  std::optional<Progress> progress;
  if (is_first()) progress.emplace(c10::str("epoch ", epoch_ + 1, "/", recipe_.epochs), left, "samples");
  while (loop_->epoch() == epoch_ && !stopped() && !done() && !loop_->rejoin()) {
    take_step();
    char detail[48];
    std::snprintf(detail, sizeof detail, "loss %.4f, waits %.0f %% for data", recent_loss_, 100 * loop_->wait_share());
    if (progress) progress->advance(loop_->last_batch_size(), detail);
    const bool at_end = loop_->epoch() != epoch_;
    if (recipe_.eval_steps > 0 && !at_end && loop_->step_count() % recipe_.eval_steps == 0) evaluate();
    if (folder_ && recipe_.save_steps > 0 && loop_->step_count() % recipe_.save_steps == 0) save();
  }
}

void FitRun::take_step() {
  const auto begin = Clock::now();
  if (elastic_ && loop_->ranks().shards_state()) note_start();
  if (trace_) {
    const bool traced = trace_->active();
    trace_->before(loop_->step_count() + 1);
    if (trace_->active() && !traced) loop_->trace_loader(trace_->loader_writer());
  }
  if (!loop_->step(stop_)) return;  // the rest of the epoch was not usable
  if (trace_ && trace_->active()) {
    trace_->after(loop_->step_count());
    if (!trace_->active()) loop_->trace_loader(nullptr);
  }
  const bool at_end = loop_->epoch() != epoch_;
  if (at_end || loop_->step_count() % recipe_.logging_steps == 0) read_losses();
  const double seconds = seconds_since(begin);
  epoch_seconds_ += seconds;
  result_.train_seconds += seconds;
  if (callbacks_.on_step) callbacks_.on_step(*loop_);
}

void FitRun::read_losses() {
  const std::vector<double> losses = loop_->take_losses();
  fresh_.insert(fresh_.end(), losses.begin(), losses.end());
  if (fresh_.empty()) return;
  losses_.insert(losses_.end(), fresh_.begin(), fresh_.end());
  recent_loss_ = mean_of(std::exchange(fresh_, {}));
  log_step();
}

void FitRun::log_step() {
  // The callback may use the model, and is called on rank 0 only.
  const bool gathers = callbacks_.on_log && loop_->ranks().shards_parameters();
  if (gathers) loop_->ranks().gather_parameters();
  write_step();
  if (gathers) loop_->ranks().release_parameters();
}

void FitRun::write_step() {
  if (!log_ || !*log_) return;
  NamedValues values = {{"loss", recent_loss_}, {"lr", optim::get_lr(*loop_->job().optimizers.front())}};
  if (loop_->last_grad_norm().defined()) values.emplace_back("grad_norm", loop_->last_grad_norm().item<double>());
  log_->step(loop_->step_count(), values);
  if (callbacks_.on_log) callbacks_.on_log(*log_, *loop_);
}

void FitRun::evaluate() {
  if (evaluated_step_ == loop_->step_count()) return;
  read_losses();
  last_evaluation_ = loop_->evaluate();
  evaluated_step_ = loop_->step_count();
  epoch_eval_seconds_ += last_evaluation_.seconds;
  note(last_evaluation_);
  log_evaluation();
  if (callbacks_.on_evaluation) callbacks_.on_evaluation(evaluated_step_, last_evaluation_);
  if (folder_ && recipe_.save_top_k > 0)
    folder_->save_best(*loop_, notes(),
                       std::isnan(last_evaluation_.accuracy) ? -last_evaluation_.loss : last_evaluation_.accuracy);
}

void FitRun::log_evaluation() {
  if (!log_) return;
  NamedValues values{{"eval_loss", last_evaluation_.loss}};
  if (!std::isnan(last_evaluation_.accuracy)) values.emplace_back("eval_accuracy", last_evaluation_.accuracy);
  for (const auto& [name, value] : last_evaluation_.metrics) values.emplace_back("eval_" + name, value);
  values.emplace_back("trained_seconds", result_.train_seconds);
  log_->step(evaluated_step_, values);
}

void FitRun::note(const Evaluation& evaluation) {
  if (recipe_.target_accuracy > 0 && evaluation.accuracy >= recipe_.target_accuracy && !result_.reached_target) {
    result_.reached_target = true;
    result_.time_to_target_s = result_.train_seconds;
  }
  const bool better = evaluation.loss < best_loss_;
  best_loss_ = better ? evaluation.loss : best_loss_;
  not_better_ = better ? 0 : not_better_ + 1;
  result_.stopped_early = recipe_.early_stopping_patience > 0 && not_better_ >= recipe_.early_stopping_patience;
}

// Called after the first epoch, when all texts were read.
void FitRun::say_cut_texts() {
  if (said_cut_texts_ || !is_first()) return;
  said_cut_texts_ = true;
  if (const std::string note = cut_texts_note(loop_->job().train); !note.empty()) log_info(note);
}

void FitRun::warn_about_other_weights() {
  if (recipe_.compile == "none" || said_other_weights_) return;
  const std::vector<int> ranks = loop_->ranks().ranks_with_other_weights();  // the same list on all ranks
  said_other_weights_ = !ranks.empty();
  if (ranks.empty() || !is_first()) return;
  log_warn("The weights of rank ", c10::Join(", ", ranks),
           " differ from those of rank 0. Possible causes: the compiler of a rank failed, or the ranks have different "
           "processors. Check them, or set compile: none.");
}

void FitRun::finish_epoch() {
  say_cut_texts();
  warn_about_other_weights();
  read_losses();
  if (loop_->job().eval) evaluate();
  EpochRecord record{.epoch = epoch_,
                     .steps = loop_->step_count(),
                     .train_loss = mean_of(losses_),
                     .train_accuracy = loop_->take_accuracy(),
                     .train_seconds = epoch_seconds_};
  if (loop_->job().eval) {
    record.eval_loss = last_evaluation_.loss;
    record.eval_accuracy = last_evaluation_.accuracy;
    record.eval_seconds = epoch_eval_seconds_;
    record.eval_metrics = last_evaluation_.metrics;
  }
  result_.history.push_back(record);
  unreported_ = record;
  ++epoch_;
  losses_.clear();
  epoch_seconds_ = epoch_eval_seconds_ = 0;
  if (log_) log_->epoch(record);
  const bool histograms = recipe_.log.find("tensorboard") != std::string::npos && !recipe_.run_folder.empty();
  if (histograms) loop_->ranks().gather_parameters();  // rank 0 reads them
  const bool divided = loop_->ranks().divides_model() && !loop_->ranks().shards_parameters();
  if (log_) log_->histograms(divided ? loop_->ranks().local_model() : loop_->job().model, record.steps);
  if (histograms) loop_->ranks().release_parameters();
  if (folder_ && (recipe_.save_steps == 0 || done())) save();
  report_epoch();
}

void FitRun::report_epoch() {
  if (!unreported_) return;
  const EpochRecord record = *std::exchange(unreported_, std::nullopt);
  if (callbacks_.on_epoch) callbacks_.on_epoch(record);
}

void FitRun::save() {
  read_losses();  // throws before a state with NaN replaces a good checkpoint
  if (log_) log_->flush();
  saving_ = true;
  folder_->save(*loop_, notes());
  saving_ = recipe_.async_checkpoints;
  saved_step_ = loop_->step_count();
  result_.checkpoint = folder_->path_of(saved_step_);
  if (callbacks_.on_checkpoint) callbacks_.on_checkpoint(result_.checkpoint);
}

std::vector<double> FitRun::numbers() const {
  return {static_cast<double>(epoch_),
          epoch_seconds_,
          result_.train_seconds,
          epoch_eval_seconds_,
          best_loss_,
          static_cast<double>(not_better_),
          static_cast<double>(evaluated_step_),
          last_evaluation_.loss,
          last_evaluation_.accuracy,
          result_.time_to_target_s,
          recent_loss_};
}

void FitRun::restore_numbers(const std::vector<double>& values) {
  TORCH_CHECK_VALUE(values.size() == numbers().size(), "resume: the progress in the checkpoint has ", values.size(),
                    " numbers, expected ", numbers().size(),
                    ". The checkpoint was written by another version of Bellows. Start a new run.");
  epoch_ = static_cast<int64_t>(values[0]);
  epoch_seconds_ = values[1];
  result_.train_seconds = values[2];
  epoch_eval_seconds_ = values[3];
  best_loss_ = values[4];
  not_better_ = static_cast<int64_t>(values[5]);
  evaluated_step_ = static_cast<int64_t>(values[6]);
  last_evaluation_.loss = values[7];
  last_evaluation_.accuracy = values[8];
  result_.time_to_target_s = values[9];
  recent_loss_ = values[10];
  // The conditions that ended the run are checked with the current recipe, whose target and patience may have changed.
  result_.reached_target = recipe_.target_accuracy > 0 && last_evaluation_.accuracy >= recipe_.target_accuracy;
  result_.stopped_early = recipe_.early_stopping_patience > 0 && not_better_ >= recipe_.early_stopping_patience;
}

NamedTensors FitRun::note_tensors() const {
  std::vector<double> history, losses = losses_;
  losses.insert(losses.end(), fresh_.begin(), fresh_.end());
  const size_t metrics = loop_->job().task.metrics.size();
  for (const EpochRecord& record : result_.history) append(history, record, metrics);
  return {{"history", to_tensor(history).view({-1, record_members + static_cast<int64_t>(metrics)})},
          {"epoch_losses", to_tensor(losses)},
          {"progress", to_tensor(numbers())}};
}

RunFolder::Notes FitRun::notes() const {
  return {.extra = note_tensors(), .environment = to_json(record_)};
}

void FitRun::restore(const checkpoint::State& state, bool own_options, bool own) {
  loop_->restore(state, own_options, own);
  result_.history.clear();
  fresh_.clear();
  for (const auto& [name, tensor] : state.extra) {
    if (name == "epoch_losses") losses_ = to_vector(tensor);
    if (name == "progress") restore_numbers(to_vector(tensor));
    if (name == "history") {
      const std::vector<std::string>& metrics = loop_->job().task.metrics;
      const auto record_width = record_members + static_cast<int64_t>(metrics.size());
      TORCH_CHECK_VALUE(tensor.dim() == 2 && (tensor.size(0) == 0 || tensor.size(1) == record_width),
                        "resume: the history in the checkpoint has shape ", tensor.sizes(), ", expected [epochs, ",
                        record_width, "]. The checkpoint was written by another version of Bellows. Start a new run.");
      const std::vector<double> rows = to_vector(tensor);
      for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(record_width))
        result_.history.push_back(record_of(rows.data() + i, metrics));
    }
  }
}

}  // namespace

Trainer::Trainer(Recipe recipe, Callbacks callbacks) : recipe_(std::move(recipe)), callbacks_(std::move(callbacks)) {
  recipe_.validate();
}

FitResult Trainer::fit() {
  Recipe recipe = recipe_;
  recipe.batch_size = with_total_batch(recipe, ranks_ ? ranks_->size() : 1).batch_size;
  Job job = make_job(recipe);
  if (!job.note.empty()) log_info(job.note);
  return fit(std::move(job));
}

FitResult Trainer::fit(const Model& model, torch::optim::Optimizer& optimizer, LossFn loss_fn, data::Dataset train_data,
                       std::optional<data::Dataset> eval_data) {
  TORCH_CHECK_VALUE(!precision_policy(recipe_).low_weights, "fit: amp_level ", recipe_.amp_level,
                    " changes the model itself. Call amp::apply() on your model and set amp_level O1, or let fit() "
                    "create the job from the recipe.");
  place_model(recipe_, model);
  // A non-owning pointer, because the caller owns the optimizer.
  const std::shared_ptr<torch::optim::Optimizer> borrowed(std::shared_ptr<void>(), &optimizer);
  return fit(Job{recipe_, model, {borrowed}, std::move(loss_fn), std::move(train_data), std::move(eval_data)});
}

/// Joins the other ranks. The other ranks do not wait for this rank before it joins.
void Trainer::join_world(Job& job) {
  check_replaceable_ranks(job.recipe, comm::read_launch_environment().world_size);
  job.elastic = elastic_;
  job.prints = std::make_shared<const DataPrints>(data_prints(job));
  const bool joins = !elastic_->has_joined();
  elastic_->join(ranks_per_replica(job.recipe));
  if (joins && callbacks_.on_ranks) callbacks_.on_ranks(elastic_->world());
  job.ranks = elastic_->world().group();
}

FitResult Trainer::fit(Job job) {
  struct Reset {  // a stop request applies to one fit only
    std::atomic<bool>&stop, &in_steps;
    ~Reset() { stop = in_steps = false; }
  } reset{stop_, in_steps_};
  if (ranks_) job.ranks = ranks_;
  if (elastic_) join_world(job);
  FitRun run(std::move(job), callbacks_, stop_, elastic_ && elastic_->is_replacement() && !has_state_);
  if (elastic_) {
    run.begin_elastic(resume_, accept_changes_);
    has_state_ = true;
  } else {
    run.begin(resume_, accept_changes_);
  }
  in_steps_ = true;
  return run.go();
}

Evaluation Trainer::evaluate(const Model& model, const data::Dataset& data, const Task& task) const {
  data::Loader loader = data.channels_last(recipe_.channels_last).loader();
  return train::evaluate(model, loader, recipe_, task);
}

}  // namespace bellows::train
