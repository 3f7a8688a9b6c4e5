#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tests/serve/raw_client.h"

namespace bellows::serve {

/// A certificate and its private key in PEM format.
struct TestCertificate {
  std::string certificate{}, key{};
};

/// Returns a new certificate that signs itself.
TestCertificate make_certificate(const std::string& name);

/// A TLS connection to the server on this machine. It accepts all certificates.
class TlsClient {
 public:
  /// Params: max_version – such as TLS1_2_VERSION; 0: the newest one
  explicit TlsClient(uint16_t port, int max_version = 0);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  std::string version() const { return SSL_get_version(ssl_.get()); }
  /// Returns the common name of the server's certificate.
  std::string certificate_name() const;
  bool send(std::string_view bytes);
  /// Reads the next response. Waits at most 20 seconds.
  RawResponse receive();
  /// Returns whether the server ends the stream properly within 20 seconds.
  bool ended_by_server();
  /// Closes the socket.
  /// Params: orderly – tell the server that the stream ends
  void close(bool orderly);

 private:
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  int socket_ = -1;
  std::string buffer_{};
  bool connected_ = false;
};

}  // namespace bellows::serve
