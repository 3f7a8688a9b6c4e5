#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows::comm {

class SharedCollectives;

/// The sockets and the shared memory of process groups. If a rank is lost, some ranks may wait for ranks that wait for the
/// lost one. To end all of these waits, each rank shuts its connections down.
/// Threads: thread-safe
class Connections {
 public:
  /// Params: store_port – port of the store, whose connections are not recorded
  explicit Connections(int store_port) : store_port_(store_port) {}

  /// Calls `connect`, and remembers the sockets that the process opens during this time. While this function runs, other
  /// threads should open no sockets.
  void record(const std::function<void()>& connect);
  /// Remembers the shared memory of a group, as long as it exists.
  void add(const std::shared_ptr<SharedCollectives>& shared);
  /// Shuts the connections down that are still open. Collectives that use them throw, on this rank and on the others.
  void shut_down();

 private:
  struct Socket {
    int fd;
    ino_t inode;  ///< distinguishes the socket from a later file with the same number
    bool operator==(const Socket&) const = default;
  };
  std::vector<Socket> open_sockets() const;

  const int store_port_;
  Mutex mutex_;
  std::vector<Socket> sockets_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<SharedCollectives>> shared_ BELLOWS_GUARDED_BY(mutex_);
};

}  // namespace bellows::comm
