#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/serve/grpc/grpc_options.h"
#include "bellows/serve/http_server.h"
#include "bellows/serve/loaded_model.h"

namespace bellows::serve {

/// Which clients may use the server.
struct AccessOptions {
  /// File with one token per line, as TOKEN or NAME:TOKEN. Each request must have the header "Authorization: Bearer
  /// TOKEN". "": no tokens
  std::string token_file{};
  bool open_health = false;        ///< `/v2/health/live` and `/v2/health/ready` need no token
  bool open_metrics = false;       ///< `/metrics` needs no token
  bool no_authentication = false;  ///< accept other machines without tokens
};

/// Which requests are traced.
struct TraceOptions {
  std::string file{};        ///< receives one JSON object per line; "": no traces
  uint64_t per_second = 10;  ///< at most this many requests in each second; 0: all
};

struct ServerOptions {
  std::string repository{};                    ///< folder with MODEL/VERSION/model.*
  std::vector<std::string> models{};           ///< models to load; empty: all
  bool model_control = true;                   ///< whether clients may load and unload models
  std::chrono::milliseconds poll_interval{0};  ///< time between two searches for changed files; 0: never
  LoadModelOptions load{};
  HttpOptions http{};
  std::optional<GrpcOptions> grpc{};  ///< nothing: no gRPC
  /// Whether clients may pass tensors in shared memory of this machine. Clients can then read and write all shared memory
  /// objects that the server's user may use. Nothing: only if all addresses are loopback addresses.
  std::optional<bool> shared_memory{};
  AccessOptions access{};
  TraceOptions trace{};
};

/// A model server for the Open Inference Protocol over HTTP and gRPC.
///
/// The constructor listens and starts to load the models. Until they are loaded, `/v2/health/ready` answers that the
/// server is not ready. Models that cannot be loaded do not stop the server; the repository's index states the reason.
/// Threads: the server has its own threads. Its functions may be called from any other thread
class Server {
 public:
  /// Params: loader – loads model files; empty: the back ends of bellows/runtime
  /// Throws: c10::ValueError if there is no such folder, if an address is invalid or in use, or if a file of the options
  ///         cannot be used. Also if other machines could connect without a token, and `no_authentication` is false.
  ///         c10::NotImplementedError with missing() in builds without this component's libraries, and with missing_grpc()
  ///         if gRPC is requested in builds without it
  explicit Server(ServerOptions options, ModelLoader loader = {});
  /// Calls drain() with a timeout of 0.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns an empty text, or which libraries were missing when Bellows was built, and what to install.
  static std::string missing();
  /// The same for gRPC.
  static std::string missing_grpc();

  uint16_t port() const;
  /// Returns the port of gRPC; 0 without gRPC.
  uint16_t grpc_port() const;
  /// Waits until the models are loaded.
  void wait_until_loaded();
  /// Reads the certificate, the key and the tokens again if their files have changed. The server also does this on its own
  /// every second. The function returns before the files are read.
  void reload_files();
  /// Reports that the server is not ready, accepts no more connections, and answers the requests that it has received.
  /// Later calls do nothing.
  /// Params:  timeout – after this time, the remaining connections are closed
  /// Returns: whether all requests were answered in time
  bool drain(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::serve
