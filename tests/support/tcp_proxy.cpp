#include "tests/support/tcp_proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>

namespace bellows::testing {

namespace {

using namespace std::chrono_literals;

constexpr size_t most_waiting_chunks = 64;

sockaddr_in at_port(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

/// Returns the socket and its port.
std::pair<int, int> listen_on_loopback() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = at_port(0);
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("TcpProxy: cannot listen");
  return {fd, ntohs(address.sin_port)};
}

}  // namespace

TcpProxy::TcpProxy() {
  const auto [listener, port] = listen_on_loopback();
  gates_.push_back({.listener = listener});
  port_ = port;
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  ending_ = true;
  thread_.join();
  for (const Gate& gate : gates_) close(gate.listener);
  for (const Connection& connection : connections_) {
    for (const Direction& direction : connection.directions) close(direction.from);
  }
}

int TcpProxy::gate(int node, int port) {
  const auto [listener, own] = listen_on_loopback();
  const std::lock_guard lock(mutex_);
  gates_.push_back({.listener = listener, .node = node, .port = port});
  return own;
}

void TcpProxy::slow_down(std::chrono::milliseconds delay, double bytes_per_s) {
  const std::lock_guard lock(mutex_);
  delay_ = delay;
  bytes_per_s_ = bytes_per_s;
}

void TcpProxy::cut(int node) {
  const std::lock_guard lock(mutex_);
  cut_.insert(node);
}

void TcpProxy::heal(int node) {
  const std::lock_guard lock(mutex_);
  cut_.erase(node);
}

bool TcpProxy::is_cut(const Connection& connection) const {
  const auto& [a, b] = connection.nodes;
  return a != b && (cut_.count(a) > 0 || cut_.count(b) > 0);
}

void TcpProxy::answer(int fd) {
  ProxyRequest request;
  if (recv(fd, &request, sizeof request, MSG_WAITALL) != sizeof request) {
    close(fd);
  } else if (request.kind == ProxyRequest::listen) {
    node_of_port_[request.port] = request.node;
    if (send(fd, "", 1, MSG_NOSIGNAL) < 0) node_of_port_.erase(request.port);
    close(fd);
  } else {
    const auto node = node_of_port_.find(request.port);
    connect(fd, request.node, node == node_of_port_.end() ? request.node : node->second, request.port);
  }
}

void TcpProxy::connect(int fd, int from_node, int to_node, int port) {
  const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = at_port(port);
  if (::connect(other, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    close(other);
    return;
  }
  const int on = 1;
  for (const int end : {fd, other}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Connection& connection = connections_.emplace_back();
  connection.nodes[0] = from_node;
  connection.nodes[1] = to_node;
  connection.directions[0].from = connection.directions[1].to = fd;
  connection.directions[0].to = connection.directions[1].from = other;
}

void TcpProxy::accept_from(const Gate& gate) {
  const int fd = accept4(gate.listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  if (gate.port == 0) {
    answer(fd);
  } else {
    connect(fd, gate.node, 0, gate.port);
  }
}

/// False: the connection broke.
bool TcpProxy::take(Direction& direction) {
  std::array<char, 65536> buffer;
  while (!direction.ended && direction.chunks.size() < most_waiting_chunks) {
    const ssize_t count = recv(direction.from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    direction.ended = count == 0;
    if (direction.ended) break;
    const double pace = bytes_per_s_ > 0 ? static_cast<double>(count) / bytes_per_s_ : 0;
    const auto begin = std::max(direction.last_due, Clock::now() + delay_);
    direction.last_due = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pace));
    direction.chunks.push_back({{buffer.data(), static_cast<size_t>(count)}, direction.last_due});
  }
  return true;
}

bool TcpProxy::give(Direction& direction) {
  while (!direction.chunks.empty() && direction.chunks.front().due <= Clock::now()) {
    std::string& bytes = direction.chunks.front().bytes;
    const ssize_t count = send(direction.to, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    passed_ += count;
    bytes.erase(0, static_cast<size_t>(count));
    if (bytes.empty()) direction.chunks.pop_front();
  }
  if (direction.ended && direction.chunks.empty() && !direction.told) {
    direction.told = true;
    shutdown(direction.to, SHUT_WR);
  }
  return true;
}

/// False: it is over.
bool TcpProxy::pass(Connection& connection) {
  if (is_cut(connection)) return true;
  for (Direction& direction : connection.directions) {
    if (!take(direction) || !give(direction)) return false;
  }
  return !(connection.directions[0].told && connection.directions[1].told);
}

/// Fills in what to wait for, and until when.
TcpProxy::Clock::time_point TcpProxy::wait_until(std::vector<pollfd>& events) {
  auto until = Clock::now() + 20ms;
  for (const Gate& gate : gates_) events.push_back({gate.listener, POLLIN, 0});
  for (const Connection& connection : connections_) {
    if (is_cut(connection)) continue;
    for (const Direction& direction : connection.directions) {
      if (!direction.ended && direction.chunks.size() < most_waiting_chunks)
        events.push_back({direction.from, POLLIN, 0});
      if (!direction.chunks.empty()) until = std::min(until, direction.chunks.front().due);
    }
  }
  return until;
}

void TcpProxy::run() {
  while (!ending_) {
    std::vector<pollfd> events;
    Clock::time_point until;
    {
      const std::lock_guard lock(mutex_);
      until = wait_until(events);
    }
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(events.data(), events.size(), static_cast<int>(std::max<int64_t>(ms, 1)));
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < gates_.size() && i < events.size(); ++i) {
      if (events[i].fd == gates_[i].listener && events[i].revents) accept_from(gates_[i]);
    }
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      if (pass(*connection)) {
        ++connection;
        continue;
      }
      for (const Direction& direction : connection->directions) close(direction.from);
      connection = connections_.erase(connection);
    }
  }
}

}  // namespace bellows::testing
