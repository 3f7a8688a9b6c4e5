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
  /// NCCL in addition to Gloo if there are GPUs and this build has CUDA, else Gloo.
  Backend backend = Backend::automatic;
  double join_timeout_s = 300;        ///< timeout for the other ranks to join
  double collective_timeout_s = 600;  ///< timeout of a collective, after which it throws
  /// A collective that waits this long is reported, with the missing ranks; then again each time the waiting time has
  /// doubled.
  double warn_after_s = 10;
};

/// All processes of a job, and the place of this process among them. World is a handle: copies refer to the same world,
/// and the process leaves it when the last copy is destroyed. Collectives (collectives.h) and meshes (mesh.h) use it.
class World {
 public:
  struct State;
  explicit World(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;
  int size() const;
  int local_rank() const;              ///< rank within this machine
  int restart_count() const;           ///< number of times that the launcher restarted all ranks
  c10::Device device() const;          ///< cuda:local_rank with NCCL, else cpu
  const std::string& backend() const;  ///< "gloo", "nccl", or "none" in a world of one
  const LaunchEnvironment& environment() const;

  /// The group of all ranks.
  const Group& group() const;
  operator const Group&() const { return group(); }

  /// Creates a group of some of the ranks, including this one. Collective for these ranks, with the same list on each.
  /// Params: ranks – in the world, ascending; name – for messages
  /// Throws: c10::ValueError if ranks do not exist, are not ascending or do not include this rank
  Group subgroup(const std::vector<int>& ranks, const std::string& name) const;

 private:
  std::shared_ptr<State> state_;
};

/// Joins the job of this process: reads the launcher's environment (launch_environment.h), meets the other ranks at a
/// store and connects them. Rank 0 logs one line about it. Without a launcher, it returns a world of one immediately.
///
/// The store is served by the launcher, or by rank 0 at MASTER_ADDR and MASTER_PORT, or is a file
/// (BELLOWS_STORE=file:///…). Store and ranks listen on the address that MASTER_ADDR names, so only on loopback by
/// default.
///
/// To join, a process needs the job's BELLOWS_TOKEN, which `bellows launch` generates. Ranks on several machines are
/// refused without a token. The token protects against other users and configuration mistakes; the traffic between
/// ranks is not encrypted.
/// Throws: c10::ValueError if the environment is incomplete or inconsistent, the ranks disagree about the world's size,
///         two processes have the same rank, the tokens differ or the port is in use. c10::Error if ranks did not join
///         in time (the message lists them)
/// Ref:    torch.distributed.init_process_group
World init(const InitOptions& options = {});

}  // namespace bellows::comm

namespace bellows {
using comm::init;
using comm::World;
}  // namespace bellows
