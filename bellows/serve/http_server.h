#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "bellows/serve/http_message.h"

namespace bellows::serve {

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8000;                              ///< 0: a free port
  int threads = 2;                                   ///< that read and write
  uint64_t max_body_bytes = uint64_t{1} << 28;       ///< larger bodies are rejected with status 413
  uint32_t max_header_bytes = 16384;                 ///< larger headers are rejected with status 431
  size_t max_connections = 1024;                     ///< further connections are answered with status 503
  std::chrono::milliseconds idle_timeout{75'000};    ///< between two requests
  std::chrono::milliseconds header_timeout{10'000};  ///< from the first byte of a request to the end of its header, and
                                                     ///< for the handshake of TLS
  std::chrono::milliseconds body_timeout{60'000};    ///< for the body of a request
  std::chrono::milliseconds write_timeout{60'000};   ///< for a response
  bool access_log = false;                           ///< log one line for each request at the level info
  /// PEM files with the certificate of the server, followed by intermediate ones, and with its private key. "": HTTP
  /// without encryption.
  std::string tls_certificate{}, tls_key{};
};

/// An HTTP/1.1 server with keep-alive, pipelining, chunked bodies and "Expect: 100-continue", with TLS 1.2 and 1.3 or
/// without encryption.
///
/// Each connection handles one request at a time. While a request is handled for more than 50 ms, the server watches
/// whether the client disconnects, and then sets HttpRequest::cancelled. A client that closes only its sending side
/// together with the request still receives the response. With TLS, this is the same as disconnecting.
/// Threads: the server has its own threads. The public functions may be called from any other thread
class HttpServer {
 public:
  /// Listens. Connections wait until start() is called.
  /// Params: handler – must exist as long as the server
  /// Throws: c10::ValueError if the address is invalid or in use, or if the certificate or the key cannot be used.
  ///         c10::NotImplementedError if TLS is requested in a build without OpenSSL
  HttpServer(HttpOptions options, HttpHandler& handler);
  /// Closes all connections. All handled requests must be answered before.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Starts to accept connections.
  void start();
  uint16_t port() const;
  size_t connections() const;
  /// Reads the certificate and the key again if the files have changed. New connections use them. If they cannot be used,
  /// an error is logged once, and the old ones stay.
  /// Threads: not concurrently with itself
  void reload_files();
  /// Accepts no more connections, closes idle ones, waits until the other ones have received their responses, and then
  /// closes them.
  /// Params:  timeout – after this time, the remaining connections are closed, too
  /// Returns: whether all requests were answered in time
  bool drain(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::serve
