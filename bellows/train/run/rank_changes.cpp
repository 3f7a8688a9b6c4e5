#include "bellows/train/run/rank_changes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/recipe/tensor_keys.h"

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

/// The progress of a rank's versions, the newest first, and whether it was writing a checkpoint.
struct Offer {
  std::array<int64_t, 2> progress;
  bool saving;
  /// The version of a step.
  std::optional<size_t> version_of(int64_t step) const {
    for (const size_t i : {0, 1}) {
      if (progress[i] >= 0 && progress[i] / progress_per_step == step) return i;
    }
    return std::nullopt;
  }
  int64_t progress_in(int64_t step) const {
    const auto version = version_of(step);
    return version ? progress[*version] : no_progress;
  }
};

std::vector<Offer> exchange_offers(const comm::Group& ranks, const OwnState& own) {
  const at::Tensor mine = at::empty({3}, at::kLong);
  auto* const numbers = mine.mutable_data_ptr<int64_t>();
  numbers[0] = own.is_new ? no_progress : at_start;
  numbers[1] = no_progress;
  for (const auto i : c10::irange(own.versions.size())) numbers[i] = own.versions[i].progress;
  numbers[2] = own.saving ? 1 : 0;
  const at::Tensor all = comm::all_gather(mine, ranks).contiguous();
  const auto* row = all.const_data_ptr<int64_t>();
  std::vector<Offer> offers;
  for (int rank = 0; rank < ranks.size(); ++rank, row += 3) offers.push_back({{row[0], row[1]}, row[2] != 0});
  return offers;
}

/// The newest step for which each position in a replica has a rank with its part.
int64_t newest_step(const std::vector<Offer>& offers, int positions) {
  std::map<int64_t, std::set<size_t>> holders;  // positions, by step
  for (const auto rank : c10::irange(offers.size())) {
    for (const int64_t progress : offers[rank].progress) {
      if (progress >= 0) holders[progress / progress_per_step].insert(rank % static_cast<size_t>(positions));
    }
  }
  for (auto step = holders.rbegin(); step != holders.rend(); ++step) {
    if (static_cast<int>(step->second.size()) == positions) return step->first;
  }
  TORCH_CHECK(false, "train: all ranks that held ", positions > 1 ? "a part of " : "",
              "the state of the run were lost. Start the job again with --resume.");
}

/// Whether an entry of State::extra belongs to one rank.
bool is_of_one_rank(const std::string& name) {
  return name.starts_with("train_metrics.") || name.starts_with("average.");
}

/// Sends a state from `root` to all ranks of the group.
void send_state(checkpoint::State& state, int root, const comm::Group& ranks) {
  const bool sends = ranks.rank() == root;
  const std::string text = comm::broadcast_string(sends ? describe(state) : "", root, ranks);
  if (!sends) state = described(text);
  broadcast(state, root, ranks);
}

/// Sends the part of a position to the ranks that lack it.
void complete_parts(const comm::Group& ranks, int positions, const std::vector<Offer>& offers, int64_t step,
                    std::optional<checkpoint::State>& state) {
  std::vector<int> members;
  std::optional<int> holder;
  for (int rank = ranks.rank() % positions; rank < ranks.size(); rank += positions) {
    const bool holds = offers[static_cast<size_t>(rank)].version_of(step).has_value();
    if (holds && holder) continue;
    if (holds) holder = rank;
    members.push_back(rank);
  }
  const auto self = std::find(members.begin(), members.end(), ranks.rank());
  if (members.size() == 1 || self == members.end()) return;
  std::vector<int> in_world;
  for (const int rank : members) in_world.push_back(ranks.ranks()[static_cast<size_t>(rank)]);
  const comm::Group group = comm::subgroup(ranks, in_world, "state");
  const auto root = std::find(members.begin(), members.end(), *holder) - members.begin();
  checkpoint::State part = state ? *state : checkpoint::State();
  send_state(part, static_cast<int>(root), group);
  if (state) return;
  // The counts of a rank are its own.
  std::erase_if(part.extra, [](const auto& item) { return item.first.starts_with("train_metrics."); });
  state = std::move(part);
}

/// Gives all ranks the notes of rank `root`, such as losses and the position in the data.
void share_notes(const comm::Group& ranks, int root, checkpoint::State& state) {
  checkpoint::State notes = state;
  notes.model.clear(), notes.optimizer.clear();
  std::erase_if(notes.extra, [](const auto& item) { return is_of_one_rank(item.first); });
  send_state(notes, root, ranks);
  std::erase_if(state.extra, [](const auto& item) { return !is_of_one_rank(item.first); });
  state.extra.insert(state.extra.begin(), notes.extra.begin(), notes.extra.end());
  notes.extra = std::move(state.extra);
  notes.model = std::move(state.model), notes.optimizer = std::move(state.optimizer);
  notes.rng.clear();
  state = std::move(notes);
}

}  // namespace

int ranks_per_replica(const Recipe& recipe) {
  return axis_size(parse_mesh(recipe.mesh), "shard");
}

void check_replaceable_ranks(const Recipe& recipe, int launched_ranks) {
  const auto refuse = [](bool wrong, const std::string& what) {
    TORCH_CHECK_VALUE(!wrong, "train: with replaced ranks (bellows launch --replace-lost), ", what);
  };
  refuse(tensor_ranks(recipe) > 1 || pipeline_ranks(recipe) > 1,
         "mesh must not have an axis tensor or pipeline, because the model of each rank must be complete, got " +
             recipe.mesh + ". Use --max-restarts without --replace-lost.");
  refuse(context_ranks(recipe) > 1,
         "mesh must not have an axis context, because no other rank can replace a part of each sequence, got " +
             recipe.mesh + ". Use --max-restarts without --replace-lost.");
  const bool zero = recipe.data_parallel.starts_with("zero");
  refuse(!zero && recipe.data_parallel != "ddp",
         "data_parallel must be ddp, zero1, zero2 or zero3, got " + recipe.data_parallel + ".");
  const std::vector<comm::MeshAxis> axes = parse_mesh(recipe.mesh);
  refuse(zero && (axis_size(axes, "data") < 2 || axis_size(axes, "shard") < 2),
         "data_parallel = " + recipe.data_parallel +
             " needs a second copy of each shard of the state. Set a mesh with " +
             "at least 2 replicas of at least 2 shards, such as {data: 2, shard: 2}, or data_parallel: ddp.");
  const int mesh_ranks = zero ? axis_size(axes, "data") * axis_size(axes, "shard") : launched_ranks;
  refuse(mesh_ranks != launched_ranks, c10::str("mesh = ", recipe.mesh, " needs ", mesh_ranks, " ranks, got ",
                                                launched_ranks, ". Start ", mesh_ranks, " ranks, or change the mesh."));
  refuse(recipe.shard_state_over_all,
         "shard_state_over_all must be false, because each part of the optimizer state then exists on one rank only.");
  refuse(recipe.offload_parameters != "none" || recipe.offload_state != "none",
         "offload_parameters and offload_state must be none, because their files belong to one set of ranks.");
  refuse(!recipe.device.starts_with("cpu"),
         "device must be cpu, because the ranks communicate over Gloo, got " + recipe.device + ".");
  refuse(recipe.gradient_compression != "none",
         "gradient_compression must be none, because a lost rank takes its rounding errors with it, got " +
             recipe.gradient_compression + ".");
  refuse(recipe.optimizer_in_backward,
         "optimizer_in_backward must be false, because a step that a lost rank interrupts must not change weights.");
  refuse(recipe.sync_batch_norm, "sync_batch_norm must be false, because its layers belong to one set of ranks.");
  refuse(recipe.quantize != "none", "quantize must be none, because its ranges belong to one set of ranks.");
  refuse(recipe.reproducible_ranks > 0, "reproducible_ranks must be 0, because the number of ranks may be any.");
  refuse(recipe.batch_size_per_rank > 0, "batch_size_per_rank must be 0, because the number of ranks changes.");
  refuse(!recipe.trace_steps.empty(), "trace_steps must be empty, because a trace belongs to one set of ranks.");
}

Newest newest_state(const comm::Group& ranks, int ranks_per_replica, const OwnState& own) {
  const std::vector<Offer> offers = exchange_offers(ranks, own);
  Newest result{.save = std::any_of(offers.begin(), offers.end(), [](const Offer& offer) { return offer.saving; })};
  const auto farthest = [&](auto progress_of) {
    const auto less = [&](const Offer& a, const Offer& b) { return progress_of(a) < progress_of(b); };
    return std::max_element(offers.begin(), offers.end(), less);
  };
  const int64_t most = farthest([](const Offer& offer) { return offer.progress[0]; })->progress[0];
  TORCH_CHECK(most != no_progress,
              "train: all ranks that held the state of the run were lost. Start the job again with --resume.");
  if (most == at_start) return result;
  const int64_t step = newest_step(offers, ranks_per_replica);
  const auto lead = farthest([&](const Offer& offer) { return offer.progress_in(step); });
  const int64_t progress = lead->progress_in(step);
  std::optional<checkpoint::State> state;
  if (const auto version = offers[static_cast<size_t>(ranks.rank())].version_of(step))
    state = own.versions[*version].state;
  const bool differ = std::any_of(offers.begin(), offers.end(),
                                  [&](const Offer& offer) { return offer.progress_in(step) != progress; });
  if (differ) {
    complete_parts(ranks, ranks_per_replica, offers, step, state);
    share_notes(ranks, static_cast<int>(lead - offers.begin()), *state);
  }
  result.version = Version{.progress = progress, .state = std::move(*state)};
  return result;
}

}  // namespace bellows::train
