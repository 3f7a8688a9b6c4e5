#pragma once

#include <stop_token>
#include <string>

namespace bellows::comm {

/// A socket that listens on `host` and `port` (0: any free port). The destructor closes it unless it was released.
/// Throws: c10::ValueError if the port is in use, the address does not belong to this machine or the host does not
///         exist
class Listener {
 public:
  Listener(const std::string& host, int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const;
  /// Transfers ownership of the file descriptor to the caller.
  int release();

 private:
  int fd_ = -1;
};

/// Waits until a process listens there. Returns false after the timeout or when `stop` is requested.
bool wait_for_listener(const std::string& host, int port, double timeout_s, const std::stop_token& stop = {});
/// The numeric local address from which packets to `host` are sent: 127.0.0.1 for a loopback address.
std::string address_towards(const std::string& host);
/// Whether the host resolves to an address that only this machine can reach.
bool is_loopback(const std::string& host);

}  // namespace bellows::comm
