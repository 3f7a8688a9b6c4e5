// What a loop is made of, as a checkpoint holds it, and back.
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/irange.h>

#include "bellows/checkpoint/rng.h"
#include "bellows/optim/state/state.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

namespace {

/// Those whose names begin with `prefix`, without it.
NamedTensors below(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors result;
  for (const auto& [name, value] : tensors) {
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), value);
  }
  return result;
}

std::string optimizer_prefix(size_t index) {
  return index == 0 ? "" : std::to_string(index) + "/";
}

}  // namespace

NamedTensors TrainLoop::optimizer_state() const {
  NamedTensors result;
  for (const auto i : c10::irange(job_.optimizers.size())) {
    for (const auto& [name, value] : optim::state_dict(*job_.optimizers[i]))
      result.emplace_back(optimizer_prefix(i) + name, value);
  }
  return result;
}

void TrainLoop::restore_optimizers(const NamedTensors& state, bool own_options) {
  for (const auto i : c10::irange(job_.optimizers.size())) {
    NamedTensors own = below(state, optimizer_prefix(i));
    if (i == 0) std::erase_if(own, [](const auto& item) { return item.first.find('/') != std::string::npos; });
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
    for (const auto& group : job_.optimizers[i]->param_groups()) options.push_back(group.options().clone());
    optim::load_state_dict(*job_.optimizers[i], own);
    for (const auto g : c10::irange(own_options ? options.size() : 0)) {
      job_.optimizers[i]->param_groups()[g].set_options(std::move(options[g]));
    }
  }
}

NamedTensors TrainLoop::extra_state(const comm::Group* ranks) const {
  NamedTensors extra = {{"samples", at::scalar_tensor(samples_, at::kLong)},
                        {"skipped", at::scalar_tensor(skipped_samples(), at::kLong)}};
  const auto append = [&extra](const std::string& prefix, const NamedTensors& part) {
    for (const auto& [name, value] : part) extra.emplace_back(prefix + name, value);
  };
  append("", update_.state());
  append("train_metrics.", metrics_.state(ranks));
  append("rates.", rates_.state());
  append("exchange.", ranks_.state());
  if (average_) append("average.", average_->state_dict());
  if (sample_stats_) append("sample_stats.", sample_stats_->state());
  return extra;
}

checkpoint::State TrainLoop::state() const {
  return {.model = job_.model.state_dict(),
          .optimizer = optimizer_state(),
          .rng = checkpoint::rng_state(),
          .extra = extra_state(nullptr),
          .step = step_,
          .epoch = epoch_,
          .batch = batch_,
          .recipe = job_.recipe.to_yaml()};
}

checkpoint::ShardedState TrainLoop::sharded_state() const {
  checkpoint::ShardedState state{.model = checkpoint::whole_parts(job_.model.state_dict()),
                                 .optimizer = {},
                                 .extra = checkpoint::whole_parts(extra_state(ranks_.group())),
                                 .rng = checkpoint::rng_state(),
                                 .step = step_,
                                 .epoch = epoch_,
                                 .batch = batch_,
                                 .recipe = job_.recipe.to_yaml()};
  for (const auto i : c10::irange(job_.optimizers.size())) {
    for (checkpoint::Part& part : Ranks::parts_of(*job_.optimizers[i])) {
      part.name = optimizer_prefix(i) + part.name;
      state.optimizer.push_back(std::move(part));
    }
  }
  return state;
}

void TrainLoop::restore(const checkpoint::State& state, bool own_options) {
  checkpoint::restore_model(job_.model, state.model);
  restore_optimizers(state.optimizer, own_options);
  for (const auto& [name, value] : state.extra) {
    if (name == "samples") samples_ = value.item<int64_t>();
    if (name == "skipped") skipped_ = value.item<int64_t>();
  }
  const NamedTensors average = below(state.extra, "average.");
  if (!own_options || !below(state.extra, "scaler.").empty()) update_.restore(state.extra);
  metrics_ = TrainMetrics(job_.recipe.train_metrics);
  if (ranks_.rank() == 0) metrics_.restore(below(state.extra, "train_metrics."));  // they are of all ranks
  rates_.restore(below(state.extra, "rates."));
  const NamedTensors sample_stats = below(state.extra, "sample_stats.");
  if (sample_stats_ && !(own_options && sample_stats.empty())) sample_stats_->load_state(sample_stats);
  if (!own_options) ranks_.restore(below(state.extra, "exchange."));
  if (own_options) rates_.forget();
  if (average_ && (!own_options || !average.empty())) average_->load_state_dict(average);
  step_ = state.step;
  epoch_ = state.epoch;
  batch_ = state.batch;
  started_ = false;
  losses_.clear();
  last_loss_ = at::Tensor();
  if (!state.rng.empty()) checkpoint::set_rng_state(state.rng);  // a rank that was not there when it was saved has none
}

}  // namespace bellows::train
