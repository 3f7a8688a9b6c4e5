#include <c10/util/Exception.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>

#include "bellows/core/error.h"
#include "bellows/serve/server.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

serve::ServerOptions options_of(const ServeArguments& arguments) {
  serve::ServerOptions options{.repository = arguments.repository,
                               .models = arguments.models,
                               .model_control = !arguments.no_model_control,
                               .poll_interval = std::chrono::seconds(arguments.poll_seconds)};
  options.load.load.threads = arguments.threads;
  options.load.max_queue_size = static_cast<uint64_t>(arguments.max_queue);
  options.http.address = arguments.address;
  options.http.port = static_cast<uint16_t>(arguments.port);
  options.http.threads = static_cast<int>(arguments.http_threads);
  options.http.access_log = arguments.access_log;
  options.http.max_connections = static_cast<size_t>(arguments.max_connections);
  options.http.tls_certificate = arguments.tls_certificate;
  options.http.tls_key = arguments.tls_key;
  options.access = {.token_file = arguments.token_file,
                    .open_health = arguments.open_health,
                    .open_metrics = arguments.open_metrics,
                    .no_authentication = arguments.no_authentication};
  options.trace = {.file = arguments.trace_file, .per_second = static_cast<uint64_t>(arguments.trace_rate)};
  if (arguments.max_body > 0) options.http.max_body_bytes = arguments.max_body;
  if (arguments.shared_memory) options.shared_memory = true;
  const bool grpc = arguments.grpc_port >= 0 || serve::Server::missing_grpc().empty();
  if (arguments.no_grpc || !grpc) return options;
  serve::GrpcOptions& rpc = options.grpc.emplace();
  rpc.address = arguments.address;
  if (arguments.grpc_port >= 0) rpc.port = static_cast<uint16_t>(arguments.grpc_port);
  rpc.threads = static_cast<int>(arguments.grpc_threads);
  rpc.max_message_bytes = options.http.max_body_bytes;
  rpc.access_log = arguments.access_log;
  return options;
}

/// Waits for signals: SIGINT and SIGTERM end the server, and SIGHUP makes it read its files again.
class Signal {
 public:
  Signal() {
    TORCH_CHECK(pipe(ends_) == 0, "cannot create a pipe: ", errno_message(errno));
    hangup_end = ends_[1];
    struct sigaction action {};
    action.sa_handler = on_hangup;
    action.sa_flags = SA_RESTART;
    sigaction(SIGHUP, &action, &earlier_);
    if (earlier_.sa_handler == SIG_IGN) sigaction(SIGHUP, &earlier_, nullptr);  // as under nohup
  }
  ~Signal() {
    sigaction(SIGHUP, &earlier_, nullptr);
    close(ends_[0]);
    close(ends_[1]);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  static void notify(void* context) { send(static_cast<Signal*>(context)->ends_[1], stop); }
  /// Returns: true for SIGHUP, and false for the others
  bool wait() const {
    char byte = stop;
    while (read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    return byte == hangup;
  }

 private:
  static constexpr char stop = 0, hangup = 1;
  static inline volatile int hangup_end = -1;  ///< the handler has no other argument

  static void send(int end, char byte) {
    if (write(end, &byte, 1) < 0) return;
  }
  static void on_hangup(int) { send(hangup_end, hangup); }

  int ends_[2] = {-1, -1};
  struct sigaction earlier_ {};
};

std::string host_text(const std::string& address) {
  return address.find(':') == std::string::npos ? address : "[" + address + "]";
}

}  // namespace

int run_serve(const ServeArguments& arguments) {
  if (const std::string missing = serve::Server::missing(); !missing.empty()) {
    print_error(missing);
    return exit_failed;
  }
  if (const std::string missing = serve::Server::missing_grpc(); arguments.grpc_port >= 0 && !missing.empty()) {
    print_error(missing);
    return exit_failed;
  }
  Signal signal;
  const Interrupt interrupt("answering the requests that were received", Signal::notify, &signal);
  serve::Server server(options_of(arguments));
  if (server.grpc_port() != 0)
    print_result("Listening on grpc://" + host_text(arguments.address) + ":" + std::to_string(server.grpc_port()) +
                 "\n");
  const std::string scheme = arguments.tls_certificate.empty() ? "http://" : "https://";
  print_result("Listening on " + scheme + host_text(arguments.address) + ":" + std::to_string(server.port()) + "\n");
  while (signal.wait()) server.reload_files();
  const bool in_time = server.drain(std::chrono::seconds(arguments.drain_seconds));
  if (!in_time)
    print_error("some requests were not answered within " + std::to_string(arguments.drain_seconds) + " seconds");
  return in_time ? exit_done : exit_failed;
}

}  // namespace bellows::cli
