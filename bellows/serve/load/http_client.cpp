#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "bellows/serve/load/http_client_impl.h"

namespace bellows::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;

void HttpClientConnection::send(std::string_view request, std::function<void(HttpAnswer)> done) {
  request_ = request;
  done_ = std::move(done);
  reused_ = socket_.is_open();
  if (reused_)
    write();
  else
    connect();
}

void HttpClientConnection::abort() {
  done_ = nullptr;
  close();
}

void HttpClientConnection::close() {
  ++generation_;
  Error ignored;
  socket_.close(ignored);
  buffer_.clear();
  parser_.reset();
}

void HttpClientConnection::connect() {
  reused_ = false;
  socket_.async_connect(endpoint_, [self = shared_from_this(), generation = generation_](Error error) {
    if (generation != self->generation_) return;
    if (error) {
      self->close();
      self->finish({.problem = error.message()});
      return;
    }
    Error ignored;
    self->socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    self->socket_.non_blocking(true, ignored);
    self->write();
  });
}

void HttpClientConnection::write() {
  written_ = 0;
  received_ = false;
  parser_.emplace(keep_);
  Error error;
  // Almost always, the kernel accepts all of the request at once.
  const size_t bytes = socket_.write_some(asio::buffer(request_.data(), request_.size()), error);
  if (error == asio::error::would_block) error = {};
  if (error) {
    asio::post(socket_.get_executor(), [self = shared_from_this(), generation = generation_] {
      if (generation == self->generation_) self->fail("connection closed");
    });
    return;
  }
  on_written({}, bytes);
}

void HttpClientConnection::on_written(Error error, size_t bytes) {
  if (error) return fail("connection closed");
  written_ += bytes;
  if (written_ == request_.size()) return read();
  socket_.async_write_some(asio::buffer(request_.data() + written_, request_.size() - written_),
                           [self = shared_from_this(), generation = generation_](Error problem, size_t count) {
                             if (generation == self->generation_) self->on_written(problem, count);
                           });
}

void HttpClientConnection::read() {
  constexpr size_t piece = 65536;
  socket_.async_read_some(buffer_.prepare(piece),
                          [self = shared_from_this(), generation = generation_](Error error, size_t bytes) {
                            if (generation == self->generation_) self->on_read(error, bytes);
                          });
}

void HttpClientConnection::on_read(Error error, size_t bytes) {
  buffer_.commit(bytes);
  received_ = received_ || bytes > 0;
  Error problem;
  if (error == asio::error::eof && received_ && parser_->got_some()) {
    parser_->put_eof(problem);
    if (!problem && parser_->is_done()) error = {};
  }
  if (error) return fail("connection closed");
  while (!parser_->is_done() && buffer_.size() > 0) {
    const size_t used = parser_->put(buffer_.data(), problem);
    buffer_.consume(used);
    if (problem == http::error::need_more) break;
    if (problem) return fail("malformed response: " + problem.message());
  }
  if (!parser_->is_done()) return read();
  HttpAnswer answer{.status = parser_->status(), .body = std::move(parser_->body()), .connected = true};
  if (!parser_->keep_alive()) close();
  finish(std::move(answer));
}

void HttpClientConnection::fail(const std::string& problem) {
  const bool again = reused_ && !received_;
  close();
  if (again) return connect();
  finish({.problem = problem, .connected = true});
}

void HttpClientConnection::finish(HttpAnswer answer) {
  // `done` often sends the next request, which replaces the function.
  if (const auto done = std::exchange(done_, nullptr)) done(std::move(answer));
}

}  // namespace bellows::serve
