#include "bellows/train/run/run_folder.h"

#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include "bellows/checkpoint/saved_checkpoint.h"

namespace bellows::train {

namespace {

/// Rejects NaN and infinity, so that a broken state cannot replace a good checkpoint.
void check_finite(const std::string& name, const at::Tensor& tensor, int64_t step) {
  if (!tensor.is_floating_point() || at::isfinite(tensor.detach()).all().item<bool>()) return;
  TORCH_CHECK(false, "fit: no checkpoint was written at step ", step, ": \"", name,
              "\" contains NaN or infinity, so a run could not resume from it. The previous checkpoint is preserved. "
              "Try a smaller lr, a warm-up, or max_grad_norm.");
}

void check_finite(const checkpoint::State& state) {
  for (const NamedTensors* section : {&state.model, &state.optimizer}) {
    for (const auto& [name, tensor] : *section) check_finite(name, tensor, state.step);
  }
}

void check_finite(const checkpoint::ShardedState& state) {
  for (const checkpoint::Parts* section : {&state.model, &state.optimizer}) {
    for (const checkpoint::Part& part : *section) check_finite(part.name, part.local, state.step);
  }
}

}  // namespace

RunFolder::RunFolder(const Recipe& recipe, const comm::Group* ranks)
    : path_(recipe.run_folder),
      async_(recipe.async_checkpoints && recipe.offload_shard_folder.empty()),
      save_top_k_(recipe.save_top_k) {
  if (!ranks) {
    own_.emplace(path_, recipe.save_total_limit);
    return;
  }
  TORCH_CHECK_VALUE(save_top_k_ == 0,
                    "fit: save_top_k works only with one process, because several ranks keep only the newest "
                    "checkpoints. Set save_top_k to 0.");
  rank_ = ranks->rank();
  shared_.emplace(path_, *ranks, recipe.save_total_limit);
}

std::string RunFolder::path_of(int64_t step) const {
  return own_ ? own_->path_of(step) : shared_->path_of(step);
}

size_t RunFolder::count() const {
  return own_ ? own_->list().size() + own_->best().size() : shared_->list().size();
}

std::optional<checkpoint::State> RunFolder::newest() {
  if (own_) return own_->newest();
  const auto path = shared_->newest();
  if (!path) return std::nullopt;
  return checkpoint::SavedCheckpoint(*path).state(rank_);
}

checkpoint::State RunFolder::state_of(const TrainLoop& loop, const Notes& notes) const {
  checkpoint::State state = loop.state();
  state.extra.insert(state.extra.end(), notes.extra.begin(), notes.extra.end());
  state.environment = notes.environment;
  check_finite(state);
  return state;
}

void RunFolder::save(const TrainLoop& loop, const Notes& notes) {
  if (own_) {
    const checkpoint::State state = state_of(loop, notes);
    async_ ? saver_.save(*own_, state) : void(own_->save(state));
    return;
  }
  checkpoint::ShardedState state = loop.sharded_state();
  for (checkpoint::Part& part : checkpoint::whole_parts(notes.extra)) state.extra.push_back(std::move(part));
  state.environment = notes.environment;
  check_finite(state);
  async_ ? shared_->save_async(state) : void(shared_->save(state));
}

void RunFolder::save_best(const TrainLoop& loop, const Notes& notes, double score) {
  saver_.wait();  // the checkpoints on disk determine which ones are best
  if (!own_->is_among_best(loop.step_count(), score, save_top_k_)) return;
  const checkpoint::State state = state_of(loop, notes);
  async_ ? void(saver_.save_best(*own_, state, score, save_top_k_)) : void(own_->save_best(state, score, save_top_k_));
}

void RunFolder::wait() {
  own_ ? saver_.wait() : shared_->wait();
}

}  // namespace bellows::train
