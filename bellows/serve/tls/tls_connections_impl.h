#pragma once

#include <memory>
#include <string>

#include "bellows/serve/http_connection_impl.h"

namespace bellows::serve {

/// Makes connections that are encrypted with TLS.
/// Threads: connection() and reload() may be called concurrently
class TlsConnections {
 public:
  /// Params: certificate, key – PEM files
  /// Throws: c10::ValueError if a file cannot be read, or if its content cannot be used.
  ///         c10::NotImplementedError in builds without OpenSSL
  TlsConnections(std::string certificate, std::string key);
  ~TlsConnections();
  TlsConnections(const TlsConnections&) = delete;
  TlsConnections& operator=(const TlsConnections&) = delete;

  std::shared_ptr<HttpConnection> connection(asio::ip::tcp::socket socket, ConnectionContext context);
  /// Reads the files again if they have changed. If they cannot be used, an error is logged once, and the old certificate
  /// and key stay.
  /// Threads: not concurrently with itself
  void reload();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::serve
