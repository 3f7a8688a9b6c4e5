#include "bellows/comm/connections.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string>

#include "bellows/comm/shared_memory/shared_collectives_impl.h"

namespace bellows::comm {

namespace {

/// The port of the other end; 0 if there is none.
int peer_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port) : 0;
}

}  // namespace

std::vector<Connections::Socket> Connections::open_sockets() const {
  std::vector<Socket> sockets;
  std::error_code error;
  for (auto file = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && file != std::filesystem::directory_iterator(); file.increment(error)) {
    const std::string name = file->path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    struct stat status {};
    if (fd < 0 || fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode) || peer_port(fd) == store_port_) continue;
    sockets.push_back({fd, status.st_ino});
  }
  return sockets;
}

void Connections::record(const std::function<void()>& connect) {
  const std::vector<Socket> before = open_sockets();
  connect();
  const MutexLock lock(mutex_);
  for (const Socket& socket : open_sockets()) {
    if (std::find(before.begin(), before.end(), socket) == before.end()) sockets_.push_back(socket);
  }
}

void Connections::add(const std::shared_ptr<SharedCollectives>& shared) {
  const MutexLock lock(mutex_);
  shared_.push_back(shared);
}

void Connections::shut_down() {
  const MutexLock lock(mutex_);
  for (const auto& known : shared_) {
    if (const auto shared = known.lock()) shared->close();
  }
  shared_.clear();
  const std::vector<Socket> open = open_sockets();
  for (const Socket& socket : sockets_) {
    if (std::find(open.begin(), open.end(), socket) != open.end()) shutdown(socket.fd, SHUT_RDWR);
  }
  sockets_.clear();
}

}  // namespace bellows::comm
