#include "bellows/train/trainer.h"

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/train/run/fit_run.h"

namespace bellows::train {

Trainer::Trainer(Recipe recipe, Callbacks callbacks) : recipe_(std::move(recipe)), callbacks_(std::move(callbacks)) {
  recipe_.validate();
}

FitResult Trainer::fit() {
  Job job = make_job(recipe_);
  if (!job.note.empty()) log_info(job.note);
  return fit(std::move(job));
}

FitResult Trainer::fit(const Model& model, torch::optim::Optimizer& optimizer, LossFn loss_fn, data::Dataset train_data,
                       std::optional<data::Dataset> eval_data) {
  TORCH_CHECK_VALUE(!precision_policy(recipe_).low_weights, "fit: precision_level ", recipe_.precision_level,
                    " changes the model itself: put yours under amp::apply() and set precision_level O1, or let fit() "
                    "make the job from the recipe.");
  place_model(recipe_, model);
  // The caller keeps the optimizer; the job only borrows it.
  const std::shared_ptr<torch::optim::Optimizer> borrowed(std::shared_ptr<void>(), &optimizer);
  return fit(Job{recipe_, model, {borrowed}, std::move(loss_fn), std::move(train_data), std::move(eval_data)});
}

FitResult Trainer::fit(Job job) {
  struct Reset {  // a stop is for one fit, however that ends
    std::atomic<bool>&stop, &in_steps;
    ~Reset() { stop = in_steps = false; }
  } reset{stop_, in_steps_};
  if (ranks_) job.ranks = ranks_;
  FitRun run(std::move(job), callbacks_, stop_);
  run.begin(resume_, accept_changes_);
  in_steps_ = true;
  return run.go();
}

Evaluation Trainer::evaluate(const Model& model, const data::Dataset& data) const {
  data::Loader loader = data.channels_last(recipe_.channels_last).loader();
  return train::evaluate(model, loader, recipe_);
}

}  // namespace bellows::train
