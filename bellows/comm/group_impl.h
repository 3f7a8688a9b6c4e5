#pragma once

// Internals of group.h that depend on c10d. They are for this component and for components that pass a process group to
// libtorch.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <optional>

#include "bellows/comm/group_parts.h"
#include "bellows/comm/shared_memory/shared_collectives_impl.h"
#include "bellows/core/mutex.h"

namespace bellows::comm {

class TrafficCount {
 public:
  void add(const std::string& name, int64_t bytes);
  std::map<std::string, Traffic> all() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, Traffic> of_ BELLOWS_GUARDED_BY(mutex_);
};

struct Group::State : GroupParts {
  std::shared_ptr<TrafficCount> traffic;
  /// In a group of one rank, the following members are empty.
  std::optional<Store> store;
  std::shared_ptr<Watchdog> watchdog;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;

  /// Closes the connections. If a collective is still running after one second, the connections stay open until the
  /// process ends, because closing them would block this thread until the collective's timeout.
  ~State();
};

/// The connections of a group.
struct Engine {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<SharedCollectives> shared = {};  ///< for tensors in host memory; null if the ranks share no memory
};

/// Wraps a back end. The wrapper counts the calls, reports them to `watchdog` before they run, and adds the rank that
/// caused a failure to error messages.
c10::intrusive_ptr<c10d::Backend> watched(Engine engine, const GroupParts& parts, std::shared_ptr<Watchdog> watchdog,
                                          std::shared_ptr<TrafficCount> traffic);

/// Creates libtorch's NCCL back end.
/// Throws: c10::Error if this build does not support CUDA
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            double timeout_s);

}  // namespace bellows::comm
