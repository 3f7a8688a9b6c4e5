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
  /// If there are GPUs and this build supports CUDA, `automatic` selects NCCL in addition to Gloo. Otherwise, it
  /// selects Gloo.
  Backend backend = Backend::automatic;
  double join_timeout_s = 300;        ///< maximum time to wait for the other ranks to join
  double collective_timeout_s = 600;  ///< time after which a collective throws
  /// If a collective waits longer than this, a warning names the missing ranks. The warning is repeated each time the
  /// waiting time has doubled.
  double warn_after_s = 10;
};

/// All processes of a job, and the rank of this process among them. World is a handle: copies refer to the same world.
/// When the last copy is destroyed, the process leaves the world. Use a World for collectives (collectives.h) and
/// meshes (mesh.h).
class World {
 public:
  struct State;
  explicit World(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const;
  int size() const;
  int local_rank() const;              ///< rank within this machine
  int restart_count() const;           ///< number of times that the launcher restarted all ranks
  c10::Device device() const;          ///< cuda:local_rank with NCCL, otherwise cpu
  const std::string& backend() const;  ///< "gloo" or "nccl"; "none" in a world of one rank
  const LaunchEnvironment& environment() const;

  /// The group of all ranks.
  const Group& group() const;
  operator const Group&() const { return group(); }

  /// Creates a group of some ranks, which must include this rank. Collective for the ranks of the new group, which must
  /// all pass the same list.
  /// Params: ranks – ranks in the world, in ascending order; name – name of the group for messages
  /// Throws: c10::ValueError if a rank does not exist, or if `ranks` is not ascending or does not include this rank
  Group subgroup(const std::vector<int>& ranks, const std::string& name) const;

 private:
  std::shared_ptr<State> state_;
};

/// Joins the job of this process. init() reads the launcher's environment (launch_environment.h), finds the other ranks
/// through a store, and connects the ranks. Rank 0 logs one line about the job. Without a launcher, init() immediately
/// returns a world of one rank.
///
/// The store is the file in BELLOWS_STORE (file:///…), if set. Otherwise, the launcher serves the store at MASTER_ADDR
/// and MASTER_PORT. If the launcher has no store, rank 0 serves it there. Each rank listens on the local address from
/// which it reaches MASTER_ADDR. MASTER_ADDR defaults to loopback, so only processes on this machine can connect.
///
/// If the job has a BELLOWS_TOKEN (`bellows launch` generates one), every process needs it. A job whose MASTER_ADDR is
/// not loopback must have a token. The token protects against other users and configuration mistakes. The traffic
/// between ranks is not encrypted.
/// Throws: c10::ValueError if the environment is incomplete or inconsistent, if the ranks have different world sizes or
///         tokens, if two processes have the same rank, or if the port is in use. c10::Error if ranks did not join in
///         time (the message lists them)
/// Ref:    torch.distributed.init_process_group
World init(const InitOptions& options = {});

}  // namespace bellows::comm

namespace bellows {
using comm::init;
using comm::World;
}  // namespace bellows
