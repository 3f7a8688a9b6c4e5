#include "bellows/serve/tls/tls_connections_impl.h"

#include <c10/util/Exception.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/system/file.h"

namespace bellows::serve {

namespace {

using Error = boost::system::error_code;
using SslContext = std::shared_ptr<asio::ssl::context>;

class TlsStream : public beast::ssl_stream<beast::tcp_stream> {
 public:
  static constexpr bool encrypted = true;

  TlsStream(asio::ip::tcp::socket socket, SslContext context)
      : beast::ssl_stream<beast::tcp_stream>(std::move(socket), *context), context_(std::move(context)) {}

  beast::tcp_stream& tcp() { return next_layer(); }
  void expect_no_end() { SSL_set_shutdown(native_handle(), SSL_RECEIVED_SHUTDOWN); }
  static bool is_plain_http(const Error& error) {
    return error.category() == asio::error::get_ssl_category() &&
           ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
  }

 private:
  SslContext context_;
};

/// The content of the files.
struct Pem {
  std::string certificate{}, key{};
  bool operator==(const Pem&) const = default;
};

void check(const Error& error, const std::string& file, const char* expected) {
  TORCH_CHECK_VALUE(!error, file, ": ", error.message(), ". Expected ", expected, ".");
}

/// Compression and renegotiation cost memory and time that a client chooses, and no client needs them.
SslContext make_context(const Pem& pem, const Pem& names) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  // Without a function for passwords, OpenSSL would ask for one on the terminal.
  context->set_password_callback([](size_t, asio::ssl::context::password_purpose) { return std::string(); });
  Error error;
  context->use_certificate_chain(asio::buffer(pem.certificate), error);
  check(error, names.certificate, "a PEM file with the certificate of the server, followed by intermediate ones");
  context->use_private_key(asio::buffer(pem.key), asio::ssl::context::pem, error);
  check(error, names.key, "a PEM file with the private key that belongs to the certificate, without a password");
  // OpenSSL finds keys of another algorithm only here.
  TORCH_CHECK_VALUE(SSL_CTX_check_private_key(native) == 1, names.key, ": expected the private key that belongs to ",
                    names.certificate, ", found the key of another certificate.");
  return context;
}

}  // namespace

class TlsConnections::Impl {
 public:
  explicit Impl(Pem names) : names_(std::move(names)), last_(read()), context_(make_context(last_, names_)) {}

  std::shared_ptr<HttpConnection> connection(asio::ip::tcp::socket socket, ConnectionContext context) {
    return std::make_shared<StreamConnection<TlsStream>>(std::move(context), std::move(socket), current());
  }

  void reload() {
    std::string problem;
    try {
      Pem now = read();
      if (now == last_) return last_problem_.clear();
      last_ = std::move(now);
      SslContext context = make_context(last_, names_);
      const MutexLock lock(mutex_);
      context_ = std::move(context);
    } catch (const std::exception& error) {
      problem = user_message(error);
    }
    if (problem.empty())
      log_info("the certificate in ", names_.certificate, " was read again.");
    else if (problem != last_problem_)
      log_error(problem, " The server continues with the old certificate and key.");
    last_problem_ = problem;
  }

 private:
  Pem read() const { return {read_text_file(names_.certificate), read_text_file(names_.key)}; }
  SslContext current() const {
    const MutexLock lock(mutex_);
    return context_;
  }

  const Pem names_;  ///< paths of the files
  Pem last_;         ///< what was read last
  std::string last_problem_{};
  mutable Mutex mutex_;
  SslContext context_ BELLOWS_GUARDED_BY(mutex_);
};

TlsConnections::TlsConnections(std::string certificate, std::string key) {
  TORCH_CHECK_VALUE(!certificate.empty() && !key.empty(),
                    "`tls_certificate` and `tls_key` must be given together, but `",
                    certificate.empty() ? "tls_certificate" : "tls_key", "` is missing.");
  impl_ = std::make_unique<Impl>(Pem{std::move(certificate), std::move(key)});
}
TlsConnections::~TlsConnections() = default;

std::shared_ptr<HttpConnection> TlsConnections::connection(asio::ip::tcp::socket socket, ConnectionContext context) {
  return impl_->connection(std::move(socket), std::move(context));
}
void TlsConnections::reload() {
  impl_->reload();
}

}  // namespace bellows::serve
