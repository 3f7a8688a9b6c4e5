// One rank of a job that saves without end: `checkpoint_rank FOLDER foreground|background`. It goes on from the newest
// checkpoint, of which every value says the step. Ends with 3 when that is wrong, with 1 when another rank has ended.
#include <ATen/ATen.h>

#include <cstdio>

#include "bellows/checkpoint/sharded_folder.h"
#include "bellows/comm/collectives.h"
#include "bellows/comm/world.h"
#include "bellows/core/error.h"

namespace bellows::checkpoint {

namespace {

constexpr int64_t elements = 50'003;

ShardedState make_state(const comm::World& world) {
  const int64_t begin = elements * world.rank() / world.size(), end = elements * (world.rank() + 1) / world.size();
  return {
      .model = whole_parts({{"w", at::zeros({elements})}}),
      .optimizer = {{"m", at::zeros({end - begin}, at::kDouble), comm::ShardSpec::run({elements}, begin, end - begin)}},
      .rng = {{"cpu", at::zeros({16}, at::kByte)}}};
}

bool is_of_step(const ShardedState& state, int64_t step) {
  const auto value = static_cast<double>(step);
  return state.step == step && state.consumed == step && state.model[0].local.eq(value).all().item<bool>() &&
         state.optimizer[0].local.eq(value).all().item<bool>();
}

int save_for_ever(const std::string& path, bool background) {
  const comm::World world = comm::init({.join_timeout_s = 60, .collective_timeout_s = 60});
  ShardedFolder folder(path, world, 2);
  ShardedState state = make_state(world);
  folder.newest(state);
  if (!is_of_step(state, state.step)) return 3;
  for (;;) {
    ++state.step;
    state.consumed = state.step;
    state.model[0].local.add_(1);
    state.optimizer[0].local.add_(1);
    comm::all_reduce(at::ones({4}), world);
    if (background) {
      folder.save_async(state);
    } else {
      folder.save(state);
    }
  }
}

}  // namespace

}  // namespace bellows::checkpoint

int main(int argc, char** argv) try {
  return argc == 3 ? bellows::checkpoint::save_for_ever(argv[1], argv[2] == std::string("background")) : 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
