#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "bellows/comm/rendezvous/listen.h"
#include "bellows/core/error.h"

namespace bellows::comm {

namespace {

constexpr int connect_timeout_ms = 2000;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, int port, int kind) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = kind;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  TORCH_CHECK_VALUE(error == 0, "store: the host \"", host,
                    "\" cannot be resolved: ", error == EAI_SYSTEM ? errno_message(errno) : gai_strerror(error),
                    ". Check MASTER_ADDR, or the launcher's `rendezvous`.");
  return {found, &freeaddrinfo};
}

bool loops_back(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

int listen_at(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, 2048) == 0) return fd;
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
}

}  // namespace

Listener::Listener(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port, SOCK_STREAM);
  for (const addrinfo* address = addresses.get(); address && fd_ < 0; address = address->ai_next)
    fd_ = listen_at(*address);
  const int reason = errno;
  TORCH_CHECK_VALUE(fd_ >= 0 || reason != EADDRINUSE, "store: port ", port, " on ", host,
                    " is in use. Another job may be running. Set a different MASTER_PORT, or end the program that "
                    "listens on this port.");
  TORCH_CHECK_VALUE(fd_ >= 0 || reason != EADDRNOTAVAIL, "store: ", host,
                    " is not an address of this machine. The store runs on the machine of rank 0. Check MASTER_ADDR, "
                    "or the launcher's `rendezvous`.");
  TORCH_CHECK_VALUE(fd_ >= 0, "store: cannot listen on ", host, ":", port, ": ", errno_message(reason), ".");
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

int Listener::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

int Listener::release() {
  return std::exchange(fd_, -1);
}

namespace {

/// Connects with a timeout, because a plain connect() takes two minutes if the network drops packets.
bool answers(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // Waiting does not help against a limit of open files.
  TORCH_CHECK(fd >= 0 || (errno != EMFILE && errno != ENFILE), "store: cannot open a socket: ", errno_message(errno),
              ".");
  if (fd < 0) return false;
  int error = connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  pollfd event = {fd, POLLOUT, 0};
  socklen_t size = sizeof error;
  if (error == EINPROGRESS && poll(&event, 1, connect_timeout_ms) == 1)
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  close(fd);
  return error == 0;
}

}  // namespace

bool wait_for_listener(const std::string& host, int port, double timeout_s, const std::stop_token& stop) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  do {
    const Addresses addresses = resolve(host, port, SOCK_STREAM);
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
      if (answers(*address)) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (std::chrono::steady_clock::now() < end && !stop.stop_requested());
  return false;
}

bool is_loopback(const std::string& host) {
  return loops_back(resolve(host, 0, SOCK_STREAM)->ai_addr);
}

std::string address_towards(const std::string& host) {
  const Addresses addresses = resolve(host, 9, SOCK_DGRAM);  // sends no packet: the kernel only selects a route
  if (loops_back(addresses->ai_addr)) return "127.0.0.1";
  const int fd = socket(addresses->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  const bool known = fd >= 0 && connect(fd, addresses->ai_addr, addresses->ai_addrlen) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  const int reason = errno;
  if (fd >= 0) close(fd);
  TORCH_CHECK(known, "init: this machine cannot reach ", host, ": ", errno_message(reason), ".");
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

}  // namespace bellows::comm
