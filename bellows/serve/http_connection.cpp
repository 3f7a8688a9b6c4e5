#include "bellows/serve/http_connection_impl.h"

namespace bellows::serve {

namespace {

class PlainStream : public beast::tcp_stream {
 public:
  static constexpr bool encrypted = false;
  using beast::tcp_stream::tcp_stream;
  beast::tcp_stream& tcp() { return *this; }
};

}  // namespace

std::shared_ptr<HttpConnection> plain_connection(asio::ip::tcp::socket socket, ConnectionContext context) {
  return std::make_shared<StreamConnection<PlainStream>>(std::move(context), std::move(socket));
}

}  // namespace bellows::serve
