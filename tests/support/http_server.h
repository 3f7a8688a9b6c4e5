#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace bellows::testing {

/// What goes wrong with one answer.
struct HttpFault {
  int status = 0;  ///< answers so, with `body`
  std::string body;
  int64_t drop_after = -1;     ///< closes the connection after so many bytes of the body
  int64_t bytes_per_step = 0;  ///< sends the body in steps of 10 ms
  int64_t claim_more = 0;      ///< says that the body has so many bytes more than it has
  int64_t stall_after = -1;    ///< sends nothing more after so many bytes, until the server ends
  int retry_after_s = 0;
  std::string redirect;
  std::string set_etag;  ///< the file has this ETag from now on
};

struct HttpServed {
  std::string path, query, range, if_range, if_none_match, authorization;
  int status = 0;
  int64_t body_bytes = 0;
};

/// An HTTP server on the loopback that knows ranges and validators, and does wrong what it is told to.
class HttpServer {
 public:
  HttpServer();
  ~HttpServer();

  struct File {
    std::string content;
    std::string etag = "\"v1\"";
    bool ranges = true;
    bool length = true;
  };
  void put_file(const std::string& path, File file);
  void put(const std::string& path, const std::string& content) { put_file(path, File{content}); }
  /// For the next answer about `path` that no earlier fault is waiting for.
  void fault(const std::string& path, HttpFault fault);
  /// For all answers about `path` without a fault of their own.
  void always(const std::string& path, HttpFault fault);

  /// From now on answers several requests on one connection.
  void keep_connections() { keep_ = true; }
  /// That clients have made.
  int64_t connections() const { return accepted_; }

  std::string url(const std::string& path = "") const;
  std::vector<HttpServed> served() const;
  /// Bytes of bodies sent for `path`.
  int64_t body_bytes(const std::string& path) const;

 private:
  void accept_all();
  void serve(int connection);
  std::pair<HttpFault, std::optional<File>> plan(const std::string& path);
  bool read_request(int connection, std::string& request) const;
  /// Whether the client got all of the answer.
  bool answer(int connection, const std::string& request);
  size_t note(const HttpServed& served);
  bool send_body(int connection, std::string_view body, const HttpFault& fault, size_t number);

  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> ending_ = false, keep_ = false;
  std::atomic<int64_t> accepted_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, File> files_;
  std::map<std::string, std::vector<HttpFault>> faults_;
  std::map<std::string, HttpFault> always_;
  std::vector<HttpServed> served_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

}  // namespace bellows::testing
