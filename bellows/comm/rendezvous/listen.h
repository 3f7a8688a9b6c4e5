#pragma once

#include <stop_token>
#include <string>

namespace bellows::comm {

/// A socket that listens on `host` and `port`. If `port` is 0, any free port is used. The destructor closes the socket
/// unless release() was called.
/// Throws: c10::ValueError if the port is in use, if the address does not belong to this machine, or if the host does
///         not exist
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

/// Waits until a process listens on `host` and `port`. Returns false after the timeout or when `stop` is requested.
bool wait_for_listener(const std::string& host, int port, double timeout_s, const std::stop_token& stop = {});
/// Returns the numeric local address from which packets to `host` are sent. For a loopback address, this is 127.0.0.1.
std::string address_towards(const std::string& host);
/// Returns whether `host` resolves to an address that only this machine can reach.
bool is_loopback(const std::string& host);

}  // namespace bellows::comm
