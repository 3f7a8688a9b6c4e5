#pragma once

// Behind group.h: for sources that see c10d, of this component and of components that give libtorch a process group.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <mutex>
#include <optional>

#include "bellows/comm/backends_impl.h"

namespace bellows::comm {

class TrafficCount {
 public:
  void add(const std::string& name, int64_t bytes);
  std::map<std::string, Traffic> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Traffic> of_;
};

struct Group::State : GroupParts {
  std::shared_ptr<TrafficCount> traffic;
  /// In a group of one there are none of these.
  std::optional<Store> store;
  std::shared_ptr<Watchdog> watchdog;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::map<std::string, int> duplicates;  ///< how many there are of each name

  /// A collective that is still running would hold this thread until its timeout: then, after a second, the connections
  /// are left to the end of the process.
  ~State();
};

/// A back end that counts what is called on it and tells `watchdog` before the one that does the work is called, and whose
/// errors say which rank is to blame.
c10::intrusive_ptr<c10d::Backend> watched(c10::intrusive_ptr<c10d::Backend> backend, const GroupParts& parts,
                                          std::shared_ptr<Watchdog> watchdog, std::shared_ptr<TrafficCount> traffic);

/// libtorch's NCCL.
/// Throws: c10::Error – this build has no CUDA
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            double timeout_s);

}  // namespace bellows::comm
