#include "bellows/parallel/pipeline/held_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/tensor/tensor_state.h"

namespace bellows::parallel {

namespace {

/// Replaces the numbers of this rank's optimizer in the names of state tensors by those of one process.
void rename_states(std::vector<comm::Shard>& shards, const std::vector<size_t>& indexes) {
  for (comm::Shard& shard : shards) {
    const auto parts = optim::split_state_name(shard.name);
    if (parts) shard.name = optim::state_name(indexes.at(parts->first), parts->second);
  }
}

/// Replaces the number of one process in the name of a state tensor by that of this rank's optimizer.
/// Returns: false if this rank does not have the parameter
bool rename_to_own(std::string& name, const std::vector<size_t>& indexes) {
  const auto parts = optim::split_state_name(name);
  if (!parts) return true;
  const auto found = std::find(indexes.begin(), indexes.end(), parts->first);
  if (found == indexes.end()) return false;
  name = optim::state_name(static_cast<size_t>(found - indexes.begin()), parts->second);
  return true;
}

/// The parameters of each group of an optimizer. The groups of ZeRO-2 and ZeRO-3 list shards instead.
std::vector<std::vector<at::Tensor>> grouped_parameters(const torch::optim::Optimizer& optimizer) {
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  std::vector<std::vector<at::Tensor>> groups;
  groups.reserve(optimizer.param_groups().size());
  auto next = sharded ? sharded->parameters().begin() : std::vector<at::Tensor>::const_iterator();
  for (const auto& group : optimizer.param_groups()) {
    const auto count = static_cast<std::ptrdiff_t>(group.params().size());
    if (sharded) {
      groups.emplace_back(next, next + count);
      next += count;
    } else {
      groups.push_back(group.params());
    }
  }
  return groups;
}

/// Positions in the model of the parameters in each group of an optimizer.
using GroupPositions = std::vector<std::set<size_t>>;

/// Joins the positions of all ranks. Collective.
/// Params: problem – a reason for which all ranks throw; "": none
GroupPositions join_positions(const GroupPositions& own, const std::string& problem, const comm::Group& group) {
  for (const std::string& found : comm::all_gather_strings(problem, group)) {
    TORCH_CHECK_VALUE(found.empty(), "pipeline: ", found);
  }
  std::string text = std::to_string(own.size());
  for (const auto& positions : own) {
    text += " " + std::to_string(positions.size());
    for (const size_t position : positions) text += " " + std::to_string(position);
  }
  GroupPositions joined(own.size());
  const auto texts = comm::all_gather_strings(text, group);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream in(texts[rank]);
    size_t groups = 0, count = 0, position = 0;
    in >> groups;
    TORCH_CHECK_VALUE(groups == own.size(), "pipeline: the optimizer of rank ", rank, " has ", groups,
                      " parameter groups, but that of rank ", group.rank(), " has ", own.size(),
                      ". Create the same groups on all ranks, even if some are empty on a rank.");
    for (auto& positions : joined) {
      for (in >> count; count > 0; --count) {
        in >> position;
        positions.insert(position);
      }
    }
  }
  return joined;
}

}  // namespace

HeldTensors::HeldTensors(const ModelParts& parts, const std::vector<int>& stage_ranks,
                         const std::vector<int>& first_parts, int rank, std::optional<TensorParallel> divided)
    : model_(parts.model), rank_(rank), tensor_(std::move(divided)) {
  for (size_t part = 0; part < parts.parts.size(); ++part) {
    const auto stage =
        std::upper_bound(first_parts.begin(), first_parts.end(), static_cast<int>(part)) - first_parts.begin() - 1;
    for (const at::Tensor& tensor : parts.parts[part].tensors)
      ranks_[tensor.unsafeGetTensorImpl()].insert(stage_ranks[static_cast<size_t>(stage)]);
  }
  std::set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : model_.parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const std::set<int>& ranks = ranks_.at(parameter.unsafeGetTensorImpl());
    all_.push_back({parameter, {ranks.begin(), ranks.end()}});
    if (holds(parameter)) own_.push_back(parameter);
  }
}

void HeldTensors::free_others() const {
  const c10::NoGradGuard no_grad;
  for (auto [name, tensor] : model_.state_dict()) {
    if (holds(tensor)) continue;
    if (tensor.grad().defined()) tensor.mutable_grad().reset();
    tensor.set_data(at::empty({0}, tensor.options()));
  }
}

NamedTensors HeldTensors::named() const {
  NamedTensors held;
  for (const auto& [name, tensor] : model_.state_dict()) {
    if (holds(tensor)) held.emplace_back(name, tensor);
  }
  return held;
}

std::vector<at::Tensor> HeldTensors::copies() const {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : all_) {
    const bool complete = tensor_ && tensor_->group().rank() > 0 && !parallel::is_divided(parameter.tensor);
    if (holds(parameter.tensor) && (complete || parameter.ranks.front() != rank_)) result.push_back(parameter.tensor);
  }
  return result;
}

std::vector<comm::Shard> HeldTensors::shards() const {
  if (tensor_) return tensor_->shards_of(named());
  return whole_shards(named());
}

/// Returns the index that each parameter of this rank's optimizer has in the optimizer of one process. Collective: if
/// a parameter belongs to no stage, all ranks throw.
std::vector<size_t> HeldTensors::global_indexes(const torch::optim::Optimizer& optimizer,
                                                const comm::Group& group) const {
  GroupPositions own;
  std::string problem;
  std::vector<std::pair<size_t, size_t>> places;  // group and position of each parameter
  for (const std::vector<at::Tensor>& parameters : grouped_parameters(optimizer)) {
    auto& positions = own.emplace_back();
    for (const at::Tensor& tensor : parameters) {
      const auto found =
          std::find_if(all_.begin(), all_.end(), [&](const Parameter& one) { return one.tensor.is_same(tensor); });
      if (found == all_.end() || !holds(tensor)) {
        problem =
            c10::str("a parameter of the optimizer with sizes [", c10::Join(", ", tensor.sizes()),
                     "] belongs to no stage of rank ", rank_, ". Create the optimizer with Pipeline::parameters().");
        continue;
      }
      places.emplace_back(own.size() - 1, static_cast<size_t>(found - all_.begin()));
      positions.insert(places.back().second);
    }
  }
  std::vector<std::map<size_t, size_t>> index_of;  // by group and position
  size_t next = 0;
  for (const auto& positions : join_positions(own, problem, group)) {
    auto& indexes = index_of.emplace_back();
    for (const size_t position : positions) indexes[position] = next++;
  }
  std::vector<size_t> result;
  result.reserve(places.size());
  for (const auto& [in_group, position] : places) result.push_back(index_of[in_group].at(position));
  return result;
}

std::vector<comm::Shard> HeldTensors::state_shards(const torch::optim::Optimizer& optimizer,
                                                   const comm::Group& group) const {
  const std::vector<size_t> indexes = global_indexes(optimizer, group);
  auto shards = tensor_ ? tensor_->state_shards(optimizer) : optimizer_shards(optimizer, {}, group);
  rename_states(shards, indexes);
  return shards;
}

std::vector<comm::Shard> HeldTensors::wanted_shards(const torch::optim::Optimizer& optimizer,
                                                    const std::vector<SavedTensor>& saved,
                                                    const comm::Group& group) const {
  const std::vector<size_t> indexes = global_indexes(optimizer, group);
  std::vector<SavedTensor> own;
  for (SavedTensor tensor : saved) {
    if (rename_to_own(tensor.name, indexes)) own.push_back(std::move(tensor));
  }
  auto shards = tensor_ ? tensor_->wanted_shards(optimizer, own) : wanted_optimizer_shards(optimizer, own, {}, group);
  rename_states(shards, indexes);
  return shards;
}

void HeldTensors::load_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled,
                              const comm::Group& group) const {
  const std::vector<size_t> indexes = global_indexes(optimizer, group);
  std::vector<comm::Shard> own = filled;
  for (comm::Shard& shard : own) {
    TORCH_CHECK_VALUE(rename_to_own(shard.name, indexes), "pipeline: \"", shard.name,
                      "\" is the state of a parameter that rank ", rank_,
                      " does not hold. Pass the shards of wanted_shards().");
  }
  if (tensor_) return tensor_->load_shards(optimizer, own);
  load_optimizer_shards(optimizer, own, {}, group);
}

}  // namespace bellows::parallel
