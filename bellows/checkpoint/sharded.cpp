#include "bellows/checkpoint/sharded.h"

#include "bellows/checkpoint/loading.h"
#include "bellows/checkpoint/saving.h"

namespace bellows::checkpoint {

Parts whole_parts(const NamedTensors& tensors) {
  Parts parts;
  parts.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    parts.push_back(
        {name, tensor, comm::ShardSpec::whole(tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>())});
  return parts;
}

void save_sharded(const std::string& path, const ShardedState& state, const comm::Group& group) {
  SavePlan plan = plan_save(state, group);
  write_planned(path, plan, group);
}

void load_sharded(const std::string& path, ShardedState& state, const comm::Group& group, const Prepare& prepare) {
  Loading loading(path, state, group, prepare);
  const std::string what = "checkpoint: " + path + " cannot be loaded: ";
  loading.open().check(what);
  loading.match();
  loading.verify().check(what);
  loading.copy();
}

}  // namespace bellows::checkpoint
