#include "bellows/train/run/rank_changes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/comm/collectives.h"

namespace bellows::train {

namespace {

constexpr NamedTensors checkpoint::State::*sections[] = {&checkpoint::State::model, &checkpoint::State::optimizer,
                                                         &checkpoint::State::extra};

std::string describe(const checkpoint::State& state) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto section : sections) {
    tensors.push_back(nlohmann::json::array());
    for (const auto& [name, tensor] : state.*section)
      tensors.back().push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec(),
                                tensor.strides().vec(), tensor.is_non_overlapping_and_dense()});
  }
  return nlohmann::json{{"step", state.step},     {"epoch", state.epoch},          {"batch", state.batch},
                        {"recipe", state.recipe}, {"tensors", std::move(tensors)}, {"environment", state.environment}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A state with the described tensors, which have no values yet.
checkpoint::State described(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  checkpoint::State state{.step = json["step"], .epoch = json["epoch"], .batch = json["batch"]};
  state.recipe = json["recipe"];
  state.environment = json["environment"];
  size_t index = 0;
  for (const auto section : sections) {
    for (const auto& [name, dtype, sizes, strides, dense] :
         json["tensors"][index++]
             .get<std::vector<std::tuple<std::string, int, std::vector<int64_t>, std::vector<int64_t>, bool>>>()) {
      const auto options = at::TensorOptions(static_cast<at::ScalarType>(dtype));
      (state.*section)
          .emplace_back(name, dense ? at::empty_strided(sizes, strides, options) : at::empty(sizes, options));
    }
  }
  return state;
}

/// Overwrites the tensors with those of rank `root`.
void broadcast(const checkpoint::State& state, int root, const comm::Group& ranks) {
  const c10::NoGradGuard no_grad;
  for (const auto section : sections) {
    for (const auto& [name, tensor] : state.*section) {
      if (tensor.numel() == 0) continue;
      const at::Tensor values = tensor.detach().cpu().contiguous();
      comm::broadcast(values.view({-1}).view(at::kByte), root, ranks);
      if (ranks.rank() != root) at::Tensor(tensor).copy_(values);
    }
  }
}

}  // namespace

void check_replaceable_ranks(const Recipe& recipe) {
  const auto refuse = [](bool wrong, const std::string& what) {
    TORCH_CHECK_VALUE(!wrong, "train: with replaced ranks (bellows launch --replace-lost), ", what);
  };
  refuse(recipe.data_parallel != "ddp",
         "each rank must hold the complete state, so data_parallel must be ddp, got " + recipe.data_parallel + ".");
  refuse(!recipe.device.starts_with("cpu"),
         "device must be cpu, because the ranks communicate over Gloo, got " + recipe.device + ".");
  refuse(recipe.gradient_compression != "none",
         "gradient_compression must be none, because a lost rank takes its rounding errors with it, got " +
             recipe.gradient_compression + ".");
  refuse(recipe.sync_batch_norm, "sync_batch_norm must be false, because its layers belong to one set of ranks.");
  refuse(recipe.quantize != "none", "quantize must be none, because its ranges belong to one set of ranks.");
  refuse(recipe.reproducible_ranks > 0, "reproducible_ranks must be 0, because the number of ranks may be any.");
  refuse(recipe.batch_size_per_rank > 0, "batch_size_per_rank must be 0, because the number of ranks changes.");
  refuse(!recipe.trace_steps.empty(), "trace_steps must be empty, because a trace belongs to one set of ranks.");
}

Newest newest_state(const comm::Group& ranks, int64_t progress, bool save,
                    const std::function<checkpoint::State()>& own) {
  at::Tensor mine = at::empty({2}, at::kLong);
  mine.mutable_data_ptr<int64_t>()[0] = progress;
  mine.mutable_data_ptr<int64_t>()[1] = save ? 1 : 0;
  const at::Tensor all = comm::all_gather(mine, ranks).t().contiguous();
  const int64_t* const steps = all.const_data_ptr<int64_t>();
  const int64_t* const newest = std::max_element(steps, steps + ranks.size());
  TORCH_CHECK(*newest != no_progress,
              "train: all ranks that held the state of the run were lost. Start the job again with --resume.");
  Newest result{.progress = *newest, .save = std::count(steps + ranks.size(), steps + 2 * ranks.size(), 1) > 0};
  if (*newest == at_start || std::all_of(steps, steps + ranks.size(), [&](int64_t other) { return other == *newest; }))
    return result;
  const int root = static_cast<int>(newest - steps);
  checkpoint::State state;
  if (ranks.rank() == root) state = own();
  const std::string text = comm::broadcast_string(ranks.rank() == root ? describe(state) : "", root, ranks);
  if (ranks.rank() != root) state = described(text);
  broadcast(state, root, ranks);
  if (ranks.rank() != root) {  // the counts of a rank are its own
    std::erase_if(state.extra, [](const auto& item) { return item.first.starts_with("train_metrics."); });
  }
  state.rng.clear();
  result.state = std::move(state);
  return result;
}

}  // namespace bellows::train
