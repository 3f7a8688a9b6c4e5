#pragma once

// Behind group.h: for sources that see c10d, of this room and of rooms that give libtorch a process group.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bellows/comm/group.h"
#include "bellows/comm/store.h"
#include "bellows/comm/watchdog_impl.h"

namespace bellows::comm {

struct Group::State {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;
  std::shared_ptr<Watchdog> watchdog;                    ///< null in a group of one
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;  ///< null in a group of one
};

/// A back end that tells `watchdog` what is called on it before the one that does the work is.
c10::intrusive_ptr<c10d::Backend> watched(c10::intrusive_ptr<c10d::Backend> backend, std::string group,
                                          std::shared_ptr<Watchdog> watchdog);

/// libtorch's NCCL.
/// Throws: c10::Error – this build has no CUDA
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            double timeout_s);

}  // namespace bellows::comm
