// Takes the place of TLS in builds without OpenSSL.
#include <c10/util/Exception.h>

#include <utility>

#include "bellows/serve/tls/tls_connections_impl.h"

namespace bellows::serve {

class TlsConnections::Impl {};

TlsConnections::TlsConnections(std::string, std::string) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "TLS is not available, because Bellows was built without libssl. Install libssl-dev, and "
                              "build Bellows again, or run the server without `tls_certificate` and `tls_key`.");
}
TlsConnections::~TlsConnections() = default;

std::shared_ptr<HttpConnection> TlsConnections::connection(asio::ip::tcp::socket socket, ConnectionContext context) {
  return plain_connection(std::move(socket), std::move(context));  // never called: the constructor throws
}
void TlsConnections::reload() {}

}  // namespace bellows::serve
