#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace bellows::serve {

/// Parses a response without storing its header. The body is stored only if the status is not 200, or if `keep` is set.
class ResponseParser final : public boost::beast::http::basic_parser<false> {
 public:
  using Error = boost::beast::error_code;
  using Text = boost::beast::string_view;

  explicit ResponseParser(bool keep) : keep_(keep) {
    eager(true);
    body_limit(std::numeric_limits<uint64_t>::max());
  }
  int status() const { return status_; }
  std::string& body() { return body_; }

 private:
  void on_request_impl(boost::beast::http::verb, Text, Text, int, Error&) override {}
  void on_response_impl(int code, Text, int, Error&) override { status_ = code; }
  void on_field_impl(boost::beast::http::field, Text, Text, Error&) override {}
  void on_header_impl(Error&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, Error&) override {}
  size_t on_body_impl(Text text, Error&) override { return store(text); }
  void on_chunk_header_impl(uint64_t, Text, Error&) override {}
  size_t on_chunk_body_impl(uint64_t, Text text, Error&) override { return store(text); }
  void on_finish_impl(Error&) override {}

  size_t store(Text text) {
    if (keep_ || status_ != 200) body_.append(text.data(), text.size());
    return text.size();
  }

  bool keep_;
  int status_ = 0;
  std::string body_{};
};

struct HttpAnswer {
  int status = 0;  ///< 0 if there was no response
  std::string body{};
  std::string problem{};  ///< why there was no response, such as "connection closed"
  bool connected = false;
};

/// A connection to an HTTP server that sends one request at a time.
/// Threads: all functions and callbacks run on the thread of the io_context
class HttpClientConnection : public std::enable_shared_from_this<HttpClientConnection> {
 public:
  using Endpoint = boost::asio::ip::tcp::endpoint;

  /// Params: keep – whether callers need the body of successful responses
  HttpClientConnection(boost::asio::io_context& io, Endpoint endpoint, bool keep)
      : socket_(io), endpoint_(std::move(endpoint)), keep_(keep) {}

  /// Sends the bytes of a request, which must exist until `done` is called. Connects first if necessary. If a connection
  /// that was idle turns out to be closed, the request is sent once more on a new one.
  void send(std::string_view request, std::function<void(HttpAnswer)> done);
  /// Disconnects. `done` is not called.
  void abort();

 private:
  using Error = boost::system::error_code;

  void connect();
  void write();
  void on_written(Error error, size_t bytes);
  void read();
  void on_read(Error error, size_t bytes);
  void finish(HttpAnswer answer);
  void fail(const std::string& problem);
  void close();

  boost::asio::ip::tcp::socket socket_;
  Endpoint endpoint_;
  bool keep_;
  std::string_view request_{};
  size_t written_ = 0;
  bool reused_ = false;      ///< the request was sent on a connection that was open before
  bool received_ = false;    ///< a byte of the response was received
  uint64_t generation_ = 0;  ///< handlers of earlier connections do nothing
  boost::beast::flat_buffer buffer_{};
  std::optional<ResponseParser> parser_{};
  std::function<void(HttpAnswer)> done_{};
};

}  // namespace bellows::serve
