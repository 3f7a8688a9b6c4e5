#include "tests/serve/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "bellows/core/text.h"

namespace bellows::serve {

RawClient::RawClient(uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect to the server");
}

RawClient::~RawClient() {
  if (socket_ >= 0) close(socket_);
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool RawClient::read_more() {
  std::array<char, 65536> piece;
  const ssize_t got = recv(socket_, piece.data(), piece.size(), 0);
  if (got <= 0) return false;
  buffer_.append(piece.data(), static_cast<size_t>(got));
  return true;
}

RawResponse RawClient::receive() {
  while (true) {
    if (std::optional<RawResponse> response = take_response(buffer_)) return std::move(*response);
    if (!read_more()) return {};
  }
}

bool RawClient::closed_by_server() {
  while (read_more()) {
  }
  std::array<char, 1> byte;
  const ssize_t got = recv(socket_, byte.data(), 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

void RawClient::half_close() {
  shutdown(socket_, SHUT_WR);
}

void RawClient::reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(socket_);
  socket_ = -1;
}

std::optional<RawResponse> take_response(std::string& bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == std::string::npos) return std::nullopt;
  RawResponse response;
  const std::string head = bytes.substr(0, end + 2);
  response.status = std::stoi(head.substr(9, 3));
  for (size_t line = head.find("\r\n") + 2; line < head.size();) {
    const size_t stop = head.find("\r\n", line), colon = head.find(": ", line);
    response.headers[lower_case(head.substr(line, colon - line))] = head.substr(colon + 2, stop - colon - 2);
    line = stop + 2;
  }
  const auto length = response.headers.find("content-length");
  const size_t size = length == response.headers.end() ? 0 : std::stoull(length->second);
  if (bytes.size() < end + 4 + size) return std::nullopt;
  response.body = bytes.substr(end + 4, size);
  bytes.erase(0, end + 4 + size);
  return response;
}

std::string post(const std::string& target, std::string_view body, const std::string& headers) {
  return "POST " + target + " HTTP/1.1\r\nHost: x\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}

std::string get(const std::string& target, const std::string& headers) {
  return "GET " + target + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
}

}  // namespace bellows::serve
