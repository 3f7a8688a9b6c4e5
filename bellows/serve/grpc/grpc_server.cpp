#include "bellows/serve/grpc/grpc_server.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/serve/grpc/infer_call_impl.h"
#include "bellows/system/thread.h"

namespace bellows::serve {

namespace {

/// The messages of gRPC and protobuf, such as those about malformed requests, are of use only for debugging.
void use_our_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function([](gpr_log_func_args* args) { log_debug("gRPC: ", args->message); });
    google::protobuf::SetLogHandler([](google::protobuf::LogLevel, const char*, int, const std::string& message) {
      log_debug("protobuf: ", message);
    });
  });
}

/// Throws: c10::ValueError if the address is no IP address. gRPC would resolve the names of machines
std::string endpoint(const GrpcOptions& options) {
  in6_addr bytes{};
  const std::string plain = options.address.substr(0, options.address.find('%'));  // without the network interface
  const bool v6 = inet_pton(AF_INET6, plain.c_str(), &bytes) == 1;
  TORCH_CHECK_VALUE(v6 || inet_pton(AF_INET, options.address.c_str(), &bytes) == 1,
                    "the `address` for gRPC must be an IP address such as 127.0.0.1 or ::1, got \"", options.address,
                    "\".");
  return (v6 ? "[" + options.address + "]" : options.address) + ":" + std::to_string(options.port);
}

void set_limits(grpc::ServerBuilder& builder, const GrpcOptions& options) {
  constexpr uint64_t most = std::numeric_limits<int>::max();
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::min(options.max_message_bytes, most)));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // Two servers must not share a port by accident.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Detects clients that have vanished without closing their connection.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 75'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  // gRPC limits the size of a message before decompression only, so small messages could use all memory.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
}

std::shared_ptr<grpc::ServerCredentials> credentials(const GrpcOptions& options) {
  if (options.tls_certificate.empty()) return grpc::InsecureServerCredentials();
  constexpr unsigned interval_s = 1;
  const auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      options.tls_key, options.tls_certificate, interval_s);
  grpc::experimental::TlsServerCredentialsOptions tls(files);
  tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsServerCredentials(tls);
}

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(GrpcOptions options, Service& handler) : options_(std::move(options)), context_(options_, handler) {
    use_our_log();
    grpc::ServerBuilder builder;
    set_limits(builder, options_);
    int port = 0;
    builder.AddListeningPort(endpoint(options_), credentials(options_), &port);
    builder.RegisterService(&context_.service);
    context_.queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (!server_ || port <= 0) {
      stop_queue();
      TORCH_CHECK_VALUE(false, "gRPC cannot listen on ", endpoint(options_),
                        ". Choose another port, or stop the program that uses it.");
    }
    port_ = static_cast<uint16_t>(port);
    accept_calls();
    start_threads();
  }

  ~Impl() {
    drain(std::chrono::milliseconds(0));
    stop_queue();
  }

  uint16_t port() const { return port_; }

  bool drain(std::chrono::milliseconds timeout) {
    if (std::exchange(drained_, true)) return true;
    // Calls are cancelled a moment later, so that they are not taken for calls that ended in time.
    constexpr std::chrono::milliseconds later{10};
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const auto cancelled_at = std::chrono::system_clock::now() + timeout + later;
    auto stopped = start_async_or_run([this, cancelled_at] { server_->Shutdown(cancelled_at); });
    context_.drain_streams();
    const bool in_time = context_.wait_until_idle(deadline);
    stopped.get();
    return in_time;
  }

 private:
  /// Several calls of a method can arrive before a thread handles the first of them.
  void accept_calls() {
    constexpr int waiting_calls = 32;
    for (int i = 0; i < waiting_calls; ++i) accept_infer_call(context_);
    accept_stream_call(context_);
    accept_control_calls(context_);
  }

  void start_threads() {
    try {
      for (int i = 0; i < std::max(options_.threads, 1); ++i)
        threads_.push_back(start_thread<std::thread>("gRPC server", [this] { run(); }));
    } catch (...) {
      server_->Shutdown();
      stop_queue();
      throw;
    }
  }

  void run() {
    void* tag = nullptr;
    bool ok = false;
    while (context_.queue->Next(&tag, &ok)) {
      try {
        static_cast<CallEvent*>(tag)->proceed(ok);
      } catch (const std::exception& error) {
        log_error("a gRPC call failed: ", user_message(error));
      }
    }
  }

  void stop_queue() {
    context_.stop();
    context_.queue->Shutdown();
    if (threads_.empty()) run();
    for (std::thread& thread : threads_) thread.join();
  }

  const GrpcOptions options_;
  CallContext context_;
  std::unique_ptr<grpc::Server> server_{};
  uint16_t port_ = 0;
  bool drained_ = false;
  std::vector<std::thread> threads_{};
};

GrpcServer::GrpcServer(GrpcOptions options, Service& service)
    : impl_(std::make_unique<Impl>(std::move(options), service)) {}
GrpcServer::~GrpcServer() = default;

std::string GrpcServer::missing() {
  return "";
}
uint16_t GrpcServer::port() const {
  return impl_->port();
}
bool GrpcServer::drain(std::chrono::milliseconds timeout) {
  return impl_->drain(timeout);
}

}  // namespace bellows::serve
