#include "bellows/serve/http_server.h"

#include <c10/util/Exception.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <future>
#include <map>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/serve/http_connection_impl.h"
#include "bellows/serve/tls/tls_connections_impl.h"
#include "bellows/system/thread.h"

namespace bellows::serve {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

namespace {

/// The connections that exist. Connections may outlive the server's other members, so they share this object.
class Connections {
 public:
  void add(const std::shared_ptr<HttpConnection>& connection) {
    const MutexLock lock(mutex_);
    all_[connection.get()] = connection;
  }
  void remove(HttpConnection* connection) {
    const MutexLock lock(mutex_);
    all_.erase(connection);
    changed_.notify_all();
  }
  size_t size() const {
    const MutexLock lock(mutex_);
    return all_.size();
  }
  /// Calls a function of each connection on its strand.
  void for_each(void (HttpConnection::*function)()) {
    std::vector<std::shared_ptr<HttpConnection>> list;
    {
      const MutexLock lock(mutex_);
      for (const auto& [key, weak] : all_) {
        if (auto connection = weak.lock()) list.push_back(std::move(connection));
      }
    }
    for (const auto& connection : list)
      asio::post(connection->executor(), [connection, function] { ((*connection).*function)(); });
  }
  bool wait_until_empty(std::chrono::milliseconds timeout) {
    UniqueLock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this]() BELLOWS_REQUIRES(mutex_) { return all_.empty(); });
  }

 private:
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<HttpConnection*, std::weak_ptr<HttpConnection>> all_ BELLOWS_GUARDED_BY(mutex_){};
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, HttpHandler& handler)
      : options_(std::move(options)), handler_(handler), acceptor_(asio::make_strand(io_)), retry_(io_) {
    if (!options_.tls_certificate.empty() || !options_.tls_key.empty())
      tls_ = std::make_unique<TlsConnections>(options_.tls_certificate, options_.tls_key);
    listen();
  }

  void start() {
    accept();
    for (int i = 0; i < std::max(options_.threads, 1); ++i)
      threads_.push_back(start_thread<std::thread>("HTTP server", [this] { run(); }));
  }

  ~Impl() {
    asio::post(acceptor_.get_executor(), [this] { stop_accepting(); });
    connections_->for_each(&HttpConnection::abort);
    connections_->wait_until_empty(std::chrono::seconds(1));
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return port_; }
  size_t connections() const { return connections_->size(); }
  void reload_files() {
    if (tls_) tls_->reload();
  }

  bool drain(std::chrono::milliseconds timeout) {
    if (!threads_.empty()) {
      std::promise<void> stopped;
      asio::post(acceptor_.get_executor(), [&] {
        stop_accepting();
        stopped.set_value();
      });
      stopped.get_future().wait();
    }
    connections_->for_each(&HttpConnection::finish);
    if (connections_->wait_until_empty(timeout)) return true;
    connections_->for_each(&HttpConnection::abort);
    return false;
  }

 private:
  void listen() {
    Error error;
    const auto address = asio::ip::make_address(options_.address, error);
    TORCH_CHECK_VALUE(!error, "`address` must be an IP address such as 127.0.0.1 or ::1, got \"", options_.address,
                      "\".");
    const tcp::endpoint endpoint(address, options_.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    TORCH_CHECK_VALUE(!error, "cannot listen on ", options_.address, ":", options_.port, ": ", error.message(),
                      ". Choose another port, or stop the program that uses it.");
    port_ = acceptor_.local_endpoint().port();
  }

  void accept() {
    if (!acceptor_.is_open()) return;
    acceptor_.async_accept(asio::make_strand(io_), [this](Error error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        // Such as when all file descriptors are used.
        log_warn("cannot accept a connection: ", error.message());
        retry_.expires_after(std::chrono::milliseconds(100));
        return retry_.async_wait(asio::bind_executor(acceptor_.get_executor(), [this](Error) { accept(); }));
      }
      greet(std::move(socket));
      accept();
    });
  }

  void greet(tcp::socket socket) {
    Error ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    if (connections_->size() >= options_.max_connections) {
      if (tls_) return;  // without a handshake, the client could not read the response
      static constexpr std::string_view refusal =
          "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: "
          "application/json\r\n"
          "Content-Length: 52\r\n\r\n{\"error\":\"the server has no more free connections.\"}";
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(refusal), ignored);
      socket.shutdown(tcp::socket::shutdown_send, ignored);
      return;
    }
    ConnectionContext context{options_, handler_, [all = connections_](HttpConnection* one) { all->remove(one); }};
    const auto connection = tls_ ? tls_->connection(std::move(socket), std::move(context))
                                 : plain_connection(std::move(socket), std::move(context));
    connections_->add(connection);
    connection->start();
  }

  void stop_accepting() {
    Error ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  /// An exception ends one connection, but not the server.
  void run() {
    while (true) {
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {
        log_error("a connection was closed because of an error: ", user_message(error));
      }
    }
  }

  const HttpOptions options_;
  HttpHandler& handler_;
  std::unique_ptr<TlsConnections> tls_{};  ///< empty: without encryption
  const std::shared_ptr<Connections> connections_ = std::make_shared<Connections>();
  asio::io_context io_{};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_{};
};

HttpServer::HttpServer(HttpOptions options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(std::move(options), handler)) {}
HttpServer::~HttpServer() = default;

void HttpServer::start() {
  impl_->start();
}
uint16_t HttpServer::port() const {
  return impl_->port();
}
size_t HttpServer::connections() const {
  return impl_->connections();
}
void HttpServer::reload_files() {
  impl_->reload_files();
}
bool HttpServer::drain(std::chrono::milliseconds timeout) {
  return impl_->drain(timeout);
}

}  // namespace bellows::serve
