#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/version.h"
#include "bellows/serve/http_server.h"
#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

/// One connection of an HttpServer. It exists as long as an operation or a response is pending.
/// Threads: all functions except executor() run on the connection's strand
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void start() = 0;
  /// Closes the connection after the response to the current request, or now if there is none.
  virtual void finish() = 0;
  /// Closes the connection now.
  virtual void abort() = 0;
  virtual asio::any_io_executor executor() = 0;
};

/// The parts of a server that its connections use. The options and the handler must exist as long as the connections.
struct ConnectionContext {
  const HttpOptions& options;
  HttpHandler& handler;
  std::function<void(HttpConnection*)> closed{};  ///< called by the destructor of a connection
};

/// Returns a connection without encryption.
std::shared_ptr<HttpConnection> plain_connection(asio::ip::tcp::socket socket, ConnectionContext context);

/// The fields of a parsed request.
template <class Fields>
class BeastHeaders final : public HttpHeaders {
 public:
  explicit BeastHeaders(const Fields& fields) : fields_(fields) {}
  std::string_view value(std::string_view name) const override {
    const auto text = fields_[beast::string_view(name.data(), name.size())];
    return {text.data(), text.size()};
  }

 private:
  const Fields& fields_;
};

/// The implementation for all kinds of streams.
/// Params of the template: Stream – PlainStream or TlsStream. It is an AsyncStream of Boost, and has
///           encrypted  – whether bytes on the socket are encrypted. The connection then starts with a handshake
///           tcp()      – the stream of the socket
///           expect_no_end() – if it is encrypted: async_shutdown() does not wait for the end of the client's stream
///           is_plain_http(error) – if it is encrypted: whether a handshake failed because of an HTTP request
template <class Stream>
class StreamConnection final : public HttpConnection, public std::enable_shared_from_this<StreamConnection<Stream>> {
 public:
  template <class... Args>
  explicit StreamConnection(ConnectionContext context, Args&&... stream)
      : stream_(std::forward<Args>(stream)...),
        options_(context.options),
        handler_(context.handler),
        closed_(std::move(context.closed)),
        watch_timer_(stream_.get_executor()) {
    Error error;
    const auto peer = stream_.tcp().socket().remote_endpoint(error);
    if (!error) peer_ = peer.address().to_string();
  }
  ~StreamConnection() override { closed_(this); }
  StreamConnection(const StreamConnection&) = delete;
  StreamConnection& operator=(const StreamConnection&) = delete;

  void start() override;
  void finish() override;
  void abort() override;
  asio::any_io_executor executor() override { return stream_.get_executor(); }

 private:
  using Error = beast::error_code;
  using Response = http::response<http::string_body>;
  using Self = std::shared_ptr<StreamConnection>;

  Self self() { return this->shared_from_this(); }
  void shake_hands();
  void on_handshake(Error error);
  void wait_for_request();
  void read_header();
  void on_header(Error error);
  bool admit();
  void read_body();
  void on_body(Error error);
  void on_read_problem(Error error);
  void reject(const std::exception& error);
  void handle_request();
  void watch_client(uint64_t request);
  void watch_encrypted(uint64_t request);
  void on_client_ready(uint64_t request, Error error);
  bool client_closed(Error& error);
  void respond(uint64_t request, const std::function<HttpResponse()>& make);
  void write(HttpResponse response);
  void log_access(const HttpResponse& response) const;
  void on_written(Error error);
  void after_response();
  void close_idle();
  void close();
  void close_slowly();

  enum class State { idle, reading, handling, writing, closing };

  /// Size of the first piece that is read of a request.
  static constexpr size_t first_read = 4096;
  /// Short requests are not watched, which saves system calls.
  static constexpr std::chrono::milliseconds watch_delay{50};
  /// After an early error response, the rest of the request is read for this time, so that the client sees the response.
  static constexpr std::chrono::seconds linger_time{2};

  Stream stream_;
  const HttpOptions& options_;
  HttpHandler& handler_;
  std::function<void(HttpConnection*)> closed_;
  State state_ = State::idle;
  beast::flat_buffer buffer_{};
  std::optional<http::request_parser<http::string_body>> parser_{};
  std::optional<Response> response_{};
  std::shared_ptr<SentResponse> sent_{};
  asio::steady_timer watch_timer_;
  std::shared_ptr<std::atomic<bool>> cancelled_{};
  uint64_t request_ = 0;  ///< number of the current request
  Clock::time_point received_{};
  std::string method_{}, target_{}, peer_{}, client_{};
  bool keep_alive_ = false;
  bool unread_ = false;    ///< the current request was answered before it was read completely
  bool watching_ = false;  ///< a read operation of watch_encrypted() is pending
  bool waiting_ = false;   ///< after_response() waits for the end of this operation
  bool finishing_ = false;
};

template <class Stream>
void StreamConnection<Stream>::start() {
  asio::dispatch(stream_.get_executor(), [self = self()] {
    if constexpr (Stream::encrypted)
      self->shake_hands();
    else
      self->wait_for_request();
  });
}

template <class Stream>
void StreamConnection<Stream>::shake_hands() {
  stream_.tcp().expires_after(options_.header_timeout);
  stream_.async_handshake(Stream::server, [self = self()](Error error) { self->on_handshake(error); });
}

template <class Stream>
void StreamConnection<Stream>::on_handshake(Error error) {
  if (!error && state_ != State::closing) return wait_for_request();
  if (state_ == State::closing || !Stream::is_plain_http(error)) return abort();
  static constexpr std::string_view answer =
      "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 68\r\n\r\n"
      "{\"error\":\"this port expects TLS. Use a URL that starts with https.\"}";
  stream_.tcp().expires_after(options_.write_timeout);
  asio::async_write(stream_.tcp(), asio::buffer(answer),
                    [self = self()](Error failed, size_t) { failed ? self->abort() : self->close_slowly(); });
}

template <class Stream>
void StreamConnection<Stream>::finish() {
  finishing_ = true;
  if (state_ != State::idle) return;
  if constexpr (Stream::encrypted)
    stream_.tcp().cancel();  // the pending operation then closes the connection
  else
    abort();
}

template <class Stream>
void StreamConnection<Stream>::abort() {
  state_ = State::closing;
  watch_timer_.cancel();
  if (cancelled_) cancelled_->store(true, std::memory_order_relaxed);
  stream_.tcp().close();
}

template <class Stream>
void StreamConnection<Stream>::wait_for_request() {
  if (finishing_) return close();
  state_ = State::idle;
  if (buffer_.size() > 0) return read_header();  // a pipelined request
  stream_.tcp().expires_after(options_.idle_timeout);
  stream_.async_read_some(buffer_.prepare(first_read), [self = self()](Error error, size_t bytes) {
    if (self->state_ == State::closing) return self->abort();
    if (error) return error == asio::error::operation_aborted && self->finishing_ ? self->close_idle() : self->abort();
    self->buffer_.commit(bytes);
    self->read_header();
  });
}

template <class Stream>
void StreamConnection<Stream>::read_header() {
  state_ = State::reading;
  received_ = Clock::now();
  parser_.emplace();
  parser_->header_limit(options_.max_header_bytes);
  parser_->body_limit(options_.max_body_bytes);
  stream_.tcp().expires_after(options_.header_timeout);
  http::async_read_header(stream_, buffer_, *parser_, [self = self()](Error error, size_t) { self->on_header(error); });
}

template <class Stream>
void StreamConnection<Stream>::on_header(Error error) {
  if (error) return on_read_problem(error);
  if (!admit()) return;
  stream_.tcp().expires_after(options_.body_timeout);
  if (parser_->is_done() || !beast::iequals(parser_->get()[http::field::expect], "100-continue")) return read_body();
  static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(go_on), [self = self()](Error failed, size_t) {
    if (failed) return self->abort();
    self->read_body();
  });
}

/// Returns: false if the request was rejected
template <class Stream>
bool StreamConnection<Stream>::admit() {
  const auto& message = parser_->get();
  const auto target = message.target();
  try {
    client_ = handler_.admit({target.data(), target.size()}, BeastHeaders(message));
    return true;
  } catch (const std::exception& error) {
    method_ = std::string(message.method_string());
    target_ = std::string(target);
    client_.clear();
    reject(error);
    return false;
  }
}

template <class Stream>
void StreamConnection<Stream>::read_body() {
  if (parser_->is_done()) return on_body({});
  http::async_read(stream_, buffer_, *parser_, [self = self()](Error error, size_t) { self->on_body(error); });
}

template <class Stream>
void StreamConnection<Stream>::on_body(Error error) {
  if (error) return on_read_problem(error);
  handle_request();
}

template <class Stream>
void StreamConnection<Stream>::on_read_problem(Error error) {
  static const auto& http_category = http::make_error_code(http::error::bad_method).category();
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
  if (state_ == State::closing || error.category() != http_category || ended) return abort();
  constexpr int too_large = 413, header_too_large = 431;
  int status = status_bad_request;
  std::string message = "the request is not valid HTTP: " + error.message() + ".";
  if (error == http::error::body_limit) {
    status = too_large;
    message = "the body is larger than " + std::to_string(options_.max_body_bytes) + " bytes.";
  } else if (error == http::error::header_limit) {
    status = header_too_large;
    message = "the header is larger than " + std::to_string(options_.max_header_bytes) + " bytes.";
  }
  method_ = "-";
  target_ = "-";
  client_.clear();
  reject(RequestError(status, message));
}

/// Answers a request that was not read completely.
template <class Stream>
void StreamConnection<Stream>::reject(const std::exception& error) {
  keep_alive_ = false;
  unread_ = true;
  write(error_response(error));
}

template <class Stream>
void StreamConnection<Stream>::handle_request() {
  state_ = State::handling;
  stream_.tcp().expires_never();
  auto message = parser_->release();
  parser_.reset();
  const BeastHeaders headers(message);
  const auto value = [&](auto field) {
    const auto text = message[field];
    return std::string(text.data(), text.size());
  };
  keep_alive_ = message.keep_alive();
  method_ = std::string(message.method_string());
  target_ = std::string(message.target());
  cancelled_ = std::make_shared<std::atomic<bool>>(false);
  HttpRequest request{.method = method_,
                      .target = target_,
                      .body = std::move(message.body()),
                      .content_encoding = value(http::field::content_encoding),
                      .received = received_,
                      .client = client_,
                      .headers = &headers,
                      .cancelled = cancelled_};
  static constexpr const char* length_field = "Inference-Header-Content-Length";
  if (message.find(length_field) != message.end()) request.inference_header_length = value(length_field);
  const uint64_t number = ++request_;
  Respond answer = [self = self(), number](std::function<HttpResponse()> make) {
    asio::post(self->stream_.get_executor(), [self, number, make = std::move(make)] { self->respond(number, make); });
  };
  watch_client(number);
  try {
    handler_.handle(std::move(request), std::move(answer));
  } catch (const std::exception& error) {
    respond(number, [&error] { return error_response(error); });
  }
}

template <class Stream>
void StreamConnection<Stream>::watch_client(uint64_t request) {
  watch_timer_.expires_after(watch_delay);
  watch_timer_.async_wait([self = self(), request](Error error) {
    if (error || self->request_ != request || self->state_ != State::handling) return;
    if constexpr (Stream::encrypted) return self->watch_encrypted(request);
    // If the client has already closed its sending side, it did so together with the request, and waits for the response.
    // If it has sent another request, its end cannot be seen.
    Error problem;
    if (self->client_closed(problem) || self->buffer_.size() > 0) return;
    if (problem) return self->on_client_ready(request, problem);
    self->stream_.tcp().socket().async_wait(asio::ip::tcp::socket::wait_read,
                                            [self, request](Error failed) { self->on_client_ready(request, failed); });
  });
}

/// The end of an encrypted stream can be seen only by reading it. Bytes of another request stay in the buffer.
template <class Stream>
void StreamConnection<Stream>::watch_encrypted(uint64_t request) {
  if (watching_ || buffer_.size() > 0) return;
  watching_ = true;
  stream_.async_read_some(buffer_.prepare(first_read), [self = self(), request](Error error, size_t bytes) {
    self->watching_ = false;
    self->buffer_.commit(bytes);
    const bool current = self->request_ == request && self->state_ == State::handling;
    if (error && error != asio::error::operation_aborted && current)
      self->cancelled_->store(true, std::memory_order_relaxed);
    if (std::exchange(self->waiting_, false)) self->after_response();
  });
}

template <class Stream>
void StreamConnection<Stream>::on_client_ready(uint64_t request, Error error) {
  if (error == asio::error::operation_aborted || request_ != request || state_ != State::handling) return;
  Error problem = error;
  if (!problem && !client_closed(problem) && !problem) return;  // it sent another request
  cancelled_->store(true, std::memory_order_relaxed);
}

/// Looks at the next byte without removing it.
/// Returns: whether the client has closed its sending side. `error` is set if the connection is broken
template <class Stream>
bool StreamConnection<Stream>::client_closed(Error& error) {
  char byte = 0;
  const ssize_t got = recv(stream_.tcp().socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    error = Error(errno, boost::system::system_category());
  return got == 0;
}

template <class Stream>
void StreamConnection<Stream>::respond(uint64_t request, const std::function<HttpResponse()>& make) {
  if (request_ != request || state_ != State::handling) return;  // the connection was closed
  watch_timer_.cancel();
  Error ignored;
  stream_.tcp().socket().cancel(ignored);  // ends the watch
  HttpResponse response;
  try {
    response = make();
  } catch (const std::exception& error) {
    response = error_response(error);
  }
  cancelled_.reset();
  write(std::move(response));
}

template <class Stream>
void StreamConnection<Stream>::write(HttpResponse response) {
  state_ = State::writing;
  keep_alive_ = keep_alive_ && !finishing_;
  if (options_.access_log) log_access(response);
  constexpr unsigned http_1_1 = 11;
  response_.emplace(static_cast<http::status>(response.status), http_1_1);
  response_->set(http::field::server, "bellows/" BELLOWS_VERSION);
  response_->set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) response_->set(name, value);
  if (response.status == status_cancelled) response_->reason("Client Closed Request");
  response_->keep_alive(keep_alive_);
  sent_ = std::move(response.sent);
  if (sent_) sent_->bytes = response.body.size();
  response_->body() = std::move(response.body);
  response_->prepare_payload();
  stream_.tcp().expires_after(options_.write_timeout);
  http::async_write(stream_, *response_, [self = self()](Error error, size_t) { self->on_written(error); });
}

template <class Stream>
void StreamConnection<Stream>::log_access(const HttpResponse& response) const {
  std::array<char, 32> time;
  std::snprintf(time.data(), time.size(), "%.3f ms",
                std::chrono::duration<double, std::milli>(Clock::now() - received_).count());
  log_info(peer_, client_.empty() ? "" : " ", client_, " ", method_, " ", target_, " ", response.status, " ",
           response.body.size(), " bytes, ", time.data(), response.log_note.empty() ? "" : ", ", response.log_note);
}

template <class Stream>
void StreamConnection<Stream>::on_written(Error error) {
  if (const auto sent = std::exchange(sent_, {}); sent && !error) {
    sent->status = static_cast<int>(response_->result_int());
    sent->sent = Clock::now();
  }
  response_.reset();
  if (error) return abort();
  after_response();
}

template <class Stream>
void StreamConnection<Stream>::after_response() {
  if (watching_) {  // the operation uses the buffer
    waiting_ = true;
    Error ignored;
    stream_.tcp().socket().cancel(ignored);
    return;
  }
  if (state_ == State::closing) return abort();
  if (keep_alive_) return wait_for_request();
  if (unread_ || buffer_.size() > 0) return close_slowly();
  close();
}

/// The client may answer the end of the stream much later, and has nothing more to read.
template <class Stream>
void StreamConnection<Stream>::close_idle() {
  if constexpr (Stream::encrypted) stream_.expect_no_end();
  close();
}

/// Closes a connection on which nothing is pending. The client of an encrypted one is told that the stream ends here, and
/// was not cut.
template <class Stream>
void StreamConnection<Stream>::close() {
  if constexpr (!Stream::encrypted) {
    abort();
  } else {
    state_ = State::closing;
    stream_.tcp().expires_after(linger_time);
    stream_.async_shutdown([self = self()](Error) { self->stream_.tcp().close(); });
  }
}

/// If unread bytes are left when a socket is closed, the system resets the connection, and the client may lose the response.
/// The rest of an encrypted stream is not decrypted.
template <class Stream>
void StreamConnection<Stream>::close_slowly() {
  state_ = State::closing;
  Error ignored;
  stream_.tcp().socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  stream_.tcp().expires_after(linger_time);
  const auto drop = [](auto& again, const Self& self, size_t left) -> void {
    constexpr size_t piece = 65536;
    self->buffer_.consume(self->buffer_.size());
    self->stream_.tcp().async_read_some(self->buffer_.prepare(piece), [again, self, left](Error error, size_t bytes) {
      if (error || bytes >= left) return self->stream_.tcp().close();
      again(again, self, left - bytes);
    });
  };
  constexpr size_t most = size_t{1} << 24;
  drop(drop, self(), most);
}

}  // namespace bellows::serve
