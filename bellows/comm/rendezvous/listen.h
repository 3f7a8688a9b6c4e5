#pragma once

#include <stop_token>
#include <string>

namespace bellows::comm {

/// A socket that listens on `host` and `port` (0: any free one), closed when destroyed unless released.
/// Throws: c10::ValueError – the port is in use, the address is not of this machine, no such host
class Listener {
 public:
  Listener(const std::string& host, int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const;
  /// The file descriptor, which the caller now owns.
  int release();

 private:
  int fd_ = -1;
};

/// Waits until somebody listens there; false when the time is up, or `stop` asks to end.
bool wait_for_listener(const std::string& host, int port, double timeout_s, const std::stop_token& stop = {});
/// Numeric address of this machine that packets to `host` leave from: 127.0.0.1 for a loopback address.
std::string address_towards(const std::string& host);
/// Resolves to an address that only this machine reaches?
bool is_loopback(const std::string& host);

}  // namespace bellows::comm
