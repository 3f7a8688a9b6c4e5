#include "cli/train_session.h"

#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "bellows/core/log.h"
#include "bellows/core/stats.h"
#include "bellows/system/stop.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::EpochRecord;
using train::FitResult;
using train::Recipe;

/// The default sink, but it erases the progress bar of a finished epoch, because the table has a row for it. Of several
/// ranks, only the first one logs more than warnings.
class TrainSink final : public LogSink {
 public:
  /// Params: first – whether this process is the first rank, which may change
  explicit TrainSink(std::shared_ptr<const std::atomic<bool>> first) : first_(std::move(first)) {}
  void write(LogLevel level, std::string_view message) override {
    if (*first_ || level >= LogLevel::warn) usual_->write(level, message);
  }
  void progress(const ProgressState& state) override {
    if (!state.finished) {
      usual_->progress(state);
    } else if (isatty(STDERR_FILENO) == 1) {
      std::fputs("\r\033[K", stderr);
    }
  }

 private:
  const std::shared_ptr<const std::atomic<bool>> first_;
  std::shared_ptr<LogSink> usual_ = make_default_log_sink();
};

/// ", mae 0.1234, r2 0.9876"
std::string metrics_text(const std::vector<std::pair<std::string, double>>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += ", " + name + " " + number("%.4f", value);
  return text;
}

nlohmann::ordered_json metrics_json(const std::vector<std::pair<std::string, double>>& metrics) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = number_or_null<nlohmann::ordered_json>(value);
  return json;
}

std::string epoch_line(const EpochRecord& record) {
  const bool evaluated = record.eval_seconds > 0, accuracy = evaluated && std::isfinite(record.eval_accuracy);
  const std::string metrics = metrics_text(record.eval_metrics);
  return pad_left(std::to_string(record.epoch + 1), 5) + pad_left(std::to_string(record.steps), 9) +
         pad_left(number("%.4f", record.train_loss), 12) +
         pad_left(std::isfinite(record.train_accuracy) ? number("%.2f %%", 100 * record.train_accuracy) : "-", 12) +
         pad_left(evaluated ? number("%.4f", record.eval_loss) : "-", 12) +
         pad_left(accuracy ? number("%.2f %%", 100 * record.eval_accuracy) : "-", 11) +
         pad_left(format_seconds(record.train_seconds), 12) + (metrics.empty() ? "" : "  " + metrics.substr(2));
}

constexpr const char* epoch_head = "epoch    steps  train loss  train acc.   eval loss  eval acc.        time";

constexpr const char* with_folder = "saving a checkpoint if training has started";

}  // namespace

// ---- stop signals

class TrainSession::Of {
 public:
  Of(TrainSession& session, train::Trainer& trainer) : session_(session) { session.trainer_ = &trainer; }
  ~Of() { session_.trainer_ = nullptr; }
  Of(const Of&) = delete;
  Of& operator=(const Of&) = delete;

 private:
  TrainSession& session_;
};

void TrainSession::on_signal(void* self) {
  auto& session = *static_cast<TrainSession*>(self);
  train::Trainer* const trainer = session.trainer_;
  if (trainer) trainer->request_stop();
  // Several ranks finish a step together, so waits must not end in only one of them.
  if (!trainer || !session.several_ranks_ || !trainer->in_steps()) request_stop();
}

TrainSession::TrainSession(bool saves)
    : interrupt_(saves ? with_folder : "nothing is saved without --out", &TrainSession::on_signal, this) {
  if (comm::ElasticWorld::is_offered()) {
    elastic_ = std::make_shared<comm::ElasticWorld>(comm::InitOptions(), comm::ElasticWorld::Start::later);
  } else {
    world_.emplace(init());
  }
  set_log_sink(std::make_shared<TrainSink>(first_));
  note_ranks();
}

void TrainSession::note_ranks() {
  several_ranks_ = elastic_ || world().size() > 1;
  *first_ = is_first();
}

bool TrainSession::is_first() const {
  if (elastic_ && !elastic_->has_joined())
    return !elastic_->is_replacement() && comm::read_launch_environment().rank == 0;
  return world().rank() == 0;
}

FitResult TrainSession::train(Recipe& recipe, const TrainResume& how) {
  if (!elastic_ && world().size() > 1 && recipe.device == "cuda") recipe.device = world().device().str();
  bool headed = false;
  train::Callbacks callbacks;
  callbacks.on_epoch = [&](const EpochRecord& record) {
    if (!headed) log_info(epoch_head);
    headed = true;
    log_info(epoch_line(record));
  };
  callbacks.on_ranks = [this](const World&) { note_ranks(); };
  train::Trainer trainer(recipe, std::move(callbacks));
  if (elastic_) {
    trainer.set_elastic_world(elastic_);
  } else {
    trainer.set_process_group(world());
  }
  trainer.resume(how.resume);
  trainer.accept_changes(how.accept_changes);
  const Of while_it_runs(*this, trainer);
  throw_if_stopped("preparing the training");
  return trainer.fit();
}

int TrainSession::exit_code(const FitResult& result) {
  if (!result.stopped) return exit_done;
  // If another rank received the signal, this one has not finished, either.
  return Interrupt::requested() ? Interrupt::exit_code() : 128 + SIGTERM;
}

// ---- results

std::string fit_json(const Recipe& recipe, const FitResult& result) {
  nlohmann::ordered_json json;
  json["model"] = recipe.model;
  json["data"] = recipe.data;
  json["epochs"] = nlohmann::ordered_json::array();
  for (const EpochRecord& record : result.history) {
    json["epochs"].push_back({{"epoch", record.epoch},
                              {"steps", record.steps},
                              {"train_loss", record.train_loss},
                              {"train_accuracy", number_or_null<nlohmann::ordered_json>(record.train_accuracy)},
                              {"eval_loss", record.eval_loss},
                              {"eval_accuracy", number_or_null<nlohmann::ordered_json>(record.eval_accuracy)},
                              {"train_seconds", record.train_seconds},
                              {"eval_seconds", record.eval_seconds}});
    if (!record.eval_metrics.empty()) json["epochs"].back()["metrics"] = metrics_json(record.eval_metrics);
  }
  json["steps"] = result.steps;
  if (result.evaluation) {
    json["eval_loss"] = result.evaluation->loss;
    json["eval_accuracy"] = number_or_null<nlohmann::ordered_json>(result.evaluation->accuracy);
    if (!result.evaluation->metrics.empty()) json["metrics"] = metrics_json(result.evaluation->metrics);
  }
  json["skipped_steps"] = result.skipped_steps;
  json["stopped"] = result.stopped;
  json["stopped_early"] = result.stopped_early;
  json["reached_target"] = result.reached_target;
  json["time_to_target_s"] = result.reached_target ? nlohmann::ordered_json(result.time_to_target_s) : nullptr;
  json["train_seconds"] = result.train_seconds;
  json["checkpoint"] = result.checkpoint;
  json["recipe"] = recipe.to_yaml();
  return json_text(json);
}

void print_fit(const Recipe& recipe, const FitResult& result, const std::string& resume_hint) {
  Terminal terminal;
  std::string text = c10::str(result.steps, " steps in ", format_seconds(result.train_seconds), " of training");
  if (recipe.target_accuracy > 0) {
    const std::string target = number("%.1f %%", 100 * recipe.target_accuracy);
    text += result.reached_target ? c10::str(", reached ", target, " after ", format_seconds(result.time_to_target_s))
                                  : c10::str(", did not reach ", target);
  }
  if (result.evaluation) {
    const double accuracy = result.evaluation->accuracy;
    text += std::isfinite(accuracy) ? ", accuracy " + number("%.2f %%", 100 * accuracy)
                                    : ", loss " + number("%.4f", result.evaluation->loss);
    text += metrics_text(result.evaluation->metrics);
  }
  if (result.stopped_early)
    text += c10::str(", stopped early after ", recipe.early_stopping_patience, " evaluations without a lower loss");
  if (result.skipped_steps > 0)
    text += c10::str(", ", result.skipped_steps, " steps skipped because of NaN or infinity");
  terminal.print(text + ".\n");
  if (!result.checkpoint.empty()) terminal.print("Checkpoint: " + result.checkpoint + "\n");
  if (result.stopped && !result.checkpoint.empty()) terminal.print(resume_hint + "\n");
}

}  // namespace bellows::cli
