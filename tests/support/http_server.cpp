#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace bellows::testing {

namespace {

std::string header_of(const std::string& request, const std::string& name) {
  const size_t at = request.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 4;
  return request.substr(begin, request.find("\r\n", begin) - begin);
}

bool send_all(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

/// Cuts "bytes=5-" or "bytes=5-9" out of the body; returns the header that says so.
std::string cut_range(HttpServed& served, std::string& body) {
  const std::string_view range = std::string_view(served.range).substr(sizeof("bytes=") - 1);
  const std::string all = std::to_string(body.size());
  size_t first = 0, last = body.size() - 1;
  const auto dash = std::from_chars(range.data(), range.data() + range.size(), first);
  std::from_chars(dash.ptr + 1, range.data() + range.size(), last);
  if (first >= body.size()) {
    served.status = 416;
    body.clear();
    return "Content-Range: bytes */" + all + "\r\n";
  }
  last = std::min(last, body.size() - 1);
  served.status = 206;
  body = body.substr(first, last - first + 1);
  return "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + all + "\r\n";
}

}  // namespace

HttpServer::HttpServer() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_, 64) != 0 || ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no loopback socket");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  ending_ = true;
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  ::close(listener_);
}

void HttpServer::put_file(const std::string& path, File file) {
  const std::lock_guard lock(mutex_);
  files_[path] = std::move(file);
}
void HttpServer::fault(const std::string& path, HttpFault fault) {
  const std::lock_guard lock(mutex_);
  faults_[path].push_back(std::move(fault));
}
void HttpServer::always(const std::string& path, HttpFault fault) {
  const std::lock_guard lock(mutex_);
  always_[path] = std::move(fault);
}

std::string HttpServer::url(const std::string& path) const {
  return "http://127.0.0.1:" + std::to_string(port_) + path;
}

std::vector<HttpServed> HttpServer::served() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

int64_t HttpServer::body_bytes(const std::string& path) const {
  int64_t total = 0;
  for (const HttpServed& one : served()) total += one.path == path ? one.body_bytes : 0;
  return total;
}

void HttpServer::accept_all() {
  while (!ending_) {
    pollfd waiting{listener_, POLLIN, 0};
    if (::poll(&waiting, 1, 20) <= 0) continue;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    ++accepted_;
    connections_.emplace_back([this, connection] { serve(connection); });
  }
}

void HttpServer::serve(int connection) {
  bool again = true;
  for (std::string request; again && read_request(connection, request); request.clear())
    again = answer(connection, request) && keep_;
  ::shutdown(connection, SHUT_RDWR);
  ::close(connection);
}

bool HttpServer::read_request(int connection, std::string& request) const {
  while (!ending_ && request.find("\r\n\r\n") == std::string::npos) {
    pollfd waiting{connection, POLLIN, 0};
    if (::poll(&waiting, 1, 20) <= 0) continue;
    char buffer[4096];
    const ssize_t got = ::recv(connection, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    request.append(buffer, static_cast<size_t>(got));
  }
  return request.starts_with("GET ");
}

/// What is to be done about a request for `path`.
std::pair<HttpFault, std::optional<HttpServer::File>> HttpServer::plan(const std::string& path) {
  const std::lock_guard lock(mutex_);
  HttpFault fault;
  if (auto& waiting = faults_[path]; !waiting.empty()) {
    fault = waiting.front();
    waiting.erase(waiting.begin());
  } else if (always_.count(path)) {
    fault = always_[path];
  }
  if (!files_.count(path)) return {fault, std::nullopt};
  File& file = files_[path];
  if (!fault.set_etag.empty()) file.etag = fault.set_etag;
  return {fault, file};
}

bool HttpServer::answer(int connection, const std::string& request) {
  const std::string target = request.substr(4, request.find(' ', 4) - 4);
  HttpServed served{.path = target.substr(0, target.find('?')),
                    .range = header_of(request, "Range"),
                    .if_range = header_of(request, "If-Range"),
                    .if_none_match = header_of(request, "If-None-Match"),
                    .authorization = header_of(request, "Authorization")};
  if (target.find('?') != std::string::npos) served.query = target.substr(target.find('?') + 1);
  const auto [fault, file] = plan(served.path);
  std::string head = keep_ ? "" : "Connection: close\r\n", body;
  served.status = 200;
  if (!fault.redirect.empty()) {
    served.status = 302;
    head += "Location: " + fault.redirect + "\r\n";
  } else if (fault.status != 0 || !file) {
    served.status = fault.status ? fault.status : 404;
    body = fault.body;
    if (fault.retry_after_s > 0) head += "Retry-After: " + std::to_string(fault.retry_after_s) + "\r\n";
  } else if (!file->etag.empty() && served.if_none_match == file->etag) {
    served.status = 304;
  } else {
    body = file->content;
    if (!file->etag.empty()) head += "ETag: " + file->etag + "\r\n";
    const bool current = served.if_range.empty() || served.if_range == file->etag;
    if (file->ranges && current && !served.range.empty()) head += cut_range(served, body);
  }
  if (!file || file->length)
    head += "Content-Length: " + std::to_string(static_cast<int64_t>(body.size()) + fault.claim_more) + "\r\n";
  // Noted before it is sent: who gets the answer may look at once.
  const size_t number = note(served);
  return send_all(connection, "HTTP/1.1 " + std::to_string(served.status) + " x\r\n" + head + "\r\n") &&
         send_body(connection, body, fault, number) && (!file || file->length) && fault.claim_more == 0;
}

size_t HttpServer::note(const HttpServed& served) {
  const std::lock_guard lock(mutex_);
  served_.push_back(served);
  return served_.size() - 1;
}

bool HttpServer::send_body(int connection, std::string_view body, const HttpFault& fault, size_t number) {
  size_t most = body.size();
  for (const int64_t cut : {fault.drop_after, fault.stall_after}) {
    if (cut >= 0) most = std::min(most, static_cast<size_t>(cut));
  }
  const size_t step = fault.bytes_per_step > 0 ? static_cast<size_t>(fault.bytes_per_step) : 65536;
  for (size_t sent = 0; sent < most && !ending_; sent += step) {
    const std::string_view piece = body.substr(sent, std::min(step, most - sent));
    {
      const std::lock_guard lock(mutex_);
      served_[number].body_bytes += static_cast<int64_t>(piece.size());
    }
    if (!send_all(connection, piece)) return false;
    if (fault.bytes_per_step > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  while (fault.stall_after >= 0 && !ending_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return most == body.size();
}

}  // namespace bellows::testing
