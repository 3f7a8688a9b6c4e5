#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/comm/launch/launch_environment.h"

namespace bellows::comm {

enum class Backend { automatic, gloo, nccl };

struct InitOptions {
  Backend backend = Backend::automatic;  ///< NCCL beside Gloo where there are GPUs and this build has CUDA, else Gloo
  double join_timeout_s = 300;           ///< how long to wait for the other ranks
  double collective_timeout_s = 600;     ///< how long a collective waits for them; then it throws
  double warn_after_s = 10;              ///< a collective that waits so long is reported, with who is missing; again
                                         ///< whenever it has taken twice as long
};

/// All processes of a job, and this one's place. A handle: copies are the same world, which this process leaves when the
/// last copy is gone. Collectives (collectives.h) and meshes (mesh.h) are made of it.
class World {
 public:
  struct State;
  explicit World(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;
  int size() const;
  int local_rank() const;              ///< among the ranks of this machine
  int restart_count() const;           ///< how often the launcher has started all ranks anew
  c10::Device device() const;          ///< cuda:local_rank under NCCL, else cpu
  const std::string& backend() const;  ///< "gloo", "nccl" or, in a world of one, "none"
  const LaunchEnvironment& environment() const;

  /// All ranks.
  const Group& group() const;
  operator const Group&() const { return group(); }

  /// Some of the ranks, of which this is one. Collective for those, with the same list on each.
  /// Params: ranks – in the world, ascending; name – for messages
  /// Throws: c10::ValueError – ranks that are not there, not ascending, or without this one
  Group subgroup(const std::vector<int>& ranks, const std::string& name) const;

 private:
  std::shared_ptr<State> state_;
};

/// Joins the job that this process was started for: reads the launcher's environment (launch_environment.h), meets the
/// other ranks at a store, connects them, and says so in one line on rank 0. Without a launcher: a world of one, at once.
///
/// The store is the launcher's, or rank 0's at MASTER_ADDR and MASTER_PORT, or a file (BELLOWS_STORE=file:///…). It and
/// the ranks listen on the address that MASTER_ADDR names, thus on loopback unless another one is given. Who joins has to
/// know BELLOWS_TOKEN, which `bellows launch` makes; ranks on several machines are refused without one. The token keeps
/// strangers and mistakes out of the group; what the ranks send each other is not encrypted.
/// Throws: c10::ValueError – the environment is incomplete or contradicts itself, ranks disagree about the world's size, two
///         claim one rank, another token, a port in use; c10::Error – ranks that did not come in time, by number
/// Ref:    torch.distributed.init_process_group
World init(const InitOptions& options = {});

}  // namespace bellows::comm

namespace bellows {
using comm::init;
using comm::World;
}  // namespace bellows
