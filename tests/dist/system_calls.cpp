#include "system_calls.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "tests/support/tcp_proxy.h"

namespace bellows::testing {

namespace {

std::atomic<int> signal_in_file{0};

int number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : 0;
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

/// Returns 0, or -1 with errno.
int real_connect(int fd, const sockaddr_in& address) {
  return static_cast<int>(syscall(SYS_connect, fd, &address, sizeof address));
}

/// The proxy is on this machine: it takes the connection and the announcement at once.
int connect_by_proxy(int fd, int port) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  const ProxyRequest request{ProxyRequest::connect, number_in_environment("TEST_NODE"), port};
  const int result = real_connect(fd, loopback(number_in_environment("TEST_PROXY")));
  if (result == 0 && send(fd, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) return -1;
  fcntl(fd, F_SETFL, flags);
  return result;
}

void announce(int listening) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size);
  const ProxyRequest request{ProxyRequest::listen, number_in_environment("TEST_NODE"), ntohs(address.sin_port)};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char done = 0;
  if (real_connect(fd, loopback(number_in_environment("TEST_PROXY"))) == 0 &&
      send(fd, &request, sizeof request, MSG_NOSIGNAL) == sizeof request)
    recv(fd, &done, 1, 0);
  close(fd);
}

}  // namespace

void die_in_the_next_file(int signal) {
  signal_in_file = signal;
}

}  // namespace bellows::testing

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  const int signal = bellows::testing::signal_in_file;
  struct stat status {};
  if (signal == 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return syscall(SYS_write, fd, data, size);
  const ssize_t written = syscall(SYS_write, fd, data, size / 2);
  bellows::testing::signal_in_file = 0;
  raise(signal);
  return written;
}

extern "C" int connect(int fd, const sockaddr* address, socklen_t size) {
  const auto* inet = reinterpret_cast<const sockaddr_in*>(address);
  const bool by_proxy = std::getenv("TEST_PROXY") && address->sa_family == AF_INET &&
                        ntohs(inet->sin_port) != bellows::testing::number_in_environment("MASTER_PORT");
  if (by_proxy) return bellows::testing::connect_by_proxy(fd, ntohs(inet->sin_port));
  return static_cast<int>(syscall(SYS_connect, fd, address, size));
}

extern "C" int listen(int fd, int backlog) {
  const auto result = static_cast<int>(syscall(SYS_listen, fd, backlog));
  if (result == 0 && std::getenv("TEST_PROXY")) bellows::testing::announce(fd);
  return result;
}
