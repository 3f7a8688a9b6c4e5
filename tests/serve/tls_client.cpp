#include "tests/serve/tls_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <stdexcept>
#include <utility>

namespace bellows::serve {

namespace {

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

}  // namespace

TestCertificate make_certificate(const std::string& name) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  constexpr long day = 86400;
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -day);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), day);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(certificate.get(), subject);
  if (X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0) throw std::runtime_error("cannot sign");
  BIO* certificate_text = BIO_new(BIO_s_mem());
  BIO* key_text = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(certificate_text, certificate.get());
  PEM_write_bio_PrivateKey(key_text, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {text_of(certificate_text), text_of(key_text)};
}

TlsClient::TlsClient(uint16_t port, int max_version)
    : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free),
      ssl_(nullptr, SSL_free),
      socket_(socket(AF_INET, SOCK_STREAM, 0)) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes with write()
  if (max_version != 0) {
    SSL_CTX_set_security_level(context_.get(), 0);  // allow old versions, so that the server has to refuse them
    SSL_CTX_set_min_proto_version(context_.get(), 0);
    SSL_CTX_set_max_proto_version(context_.get(), max_version);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect to the server");
  ssl_.reset(SSL_new(context_.get()));
  SSL_set_fd(ssl_.get(), socket_);
  connected_ = SSL_connect(ssl_.get()) == 1;
}

TlsClient::~TlsClient() {
  if (socket_ >= 0) close(false);
}

std::string TlsClient::certificate_name() const {
  const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(ssl_.get()), X509_free);
  std::array<char, 64> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  return name.data();
}

bool TlsClient::send(std::string_view bytes) {
  return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
}

RawResponse TlsClient::receive() {
  std::array<char, 65536> piece;
  while (true) {
    if (std::optional<RawResponse> response = take_response(buffer_)) return std::move(*response);
    const int got = SSL_read(ssl_.get(), piece.data(), static_cast<int>(piece.size()));
    if (got <= 0) return {};
    buffer_.append(piece.data(), static_cast<size_t>(got));
  }
}

bool TlsClient::ended_by_server() {
  std::array<char, 4096> piece;
  int got = 0;
  while ((got = SSL_read(ssl_.get(), piece.data(), static_cast<int>(piece.size()))) > 0) {
  }
  return SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN;
}

void TlsClient::close(bool orderly) {
  if (orderly) SSL_shutdown(ssl_.get());
  ::close(socket_);
  socket_ = -1;
}

}  // namespace bellows::serve
