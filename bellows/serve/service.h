#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/serve/access/access_tokens.h"
#include "bellows/serve/http_message.h"
#include "bellows/serve/protocol/shared_memory.h"
#include "bellows/serve/repository.h"
#include "bellows/serve/trace/request_tracer.h"

namespace bellows::serve {

struct ServiceOptions {
  bool model_control = true;                       ///< whether clients may load and unload models
  bool shared_memory = true;                       ///< whether clients may use shared memory of this machine
  uint64_t max_shared_memory = uint64_t{1} << 28;  ///< bytes of one tensor in shared memory
  /// Runs a function on a thread that may wait, such as for the loading of a model.
  std::function<void(std::function<void()>)> run_control{};
  std::function<ServerValues()> server_values{};
  std::shared_ptr<const TokenFile> tokens{};  ///< empty: clients need no token
  bool open_health = false;                   ///< `/v2/health/live` and `/v2/health/ready` need no token
  bool open_metrics = false;                  ///< `/metrics` needs no token
  std::shared_ptr<RequestTracer> tracer{};    ///< empty: no traces
};

/// The members of an inference request that its response needs.
struct ExpectedAnswer {
  std::shared_ptr<const ModelSignature> model{};
  std::string id{};
  std::vector<RequestedOutput> outputs{};
  std::shared_ptr<RequestTrace> trace{};  ///< may be empty
};

/// An inference request of any protocol.
struct InferCall {
  std::string model{}, version{};
  Clock::time_point received{};
  std::shared_ptr<const std::atomic<bool>> cancelled{};  ///< see PendingRequest
  std::shared_ptr<RequestTrace> trace{};                 ///< may be empty
  /// Reads the request for a model. It is called again if the model is replaced at the same time.
  std::function<InferRequest(const ModelSignature&)> parse{};
  /// See PendingRequest::done.
  std::function<void(const std::shared_ptr<const ExpectedAnswer>&, InferenceResult)> done{};
};

/// The URLs of the Open Inference Protocol, Triton's extensions and the metrics.
/// Threads: thread-safe
class Service final : public HttpHandler {
 public:
  /// Params: repository – must exist as long as the service
  Service(Repository& repository, ServiceOptions options);

  std::string admit(std::string_view target, const HttpHeaders& headers) const override;
  void handle(HttpRequest request, Respond respond) override;
  /// Returns the name of the client with this value of the header Authorization, or "" if the URL needs no token.
  /// Throws: RequestError with status 401 if the token is missing or unknown
  std::string client_of(std::string_view target, std::string_view authorization) const;
  /// Starts the trace of an inference request.
  /// Returns: an empty pointer if the request is not traced
  std::shared_ptr<RequestTrace> start_trace(const TraceStart& request) const {
    return options_.tracer ? options_.tracer->start(request) : nullptr;
  }
  /// Gives a request to its model.
  /// Throws: RequestError or other exceptions if the request was not accepted; `done` is not called then
  void infer(const InferCall& call);
  /// The regions that clients have registered, or nullptr if clients may not use shared memory.
  SharedMemory* shared_memory() { return options_.shared_memory ? &shared_memory_ : nullptr; }
  /// Sets what `/v2/health/ready` answers. Initially, the server is not ready.
  void set_ready(bool ready) { ready_ = ready; }
  /// Returns the number of all requests so far that run, load or unload models.
  uint64_t requests() const { return requests_; }

 private:
  struct Call;
  void post_infer(const Call& call, const std::string& model, const std::string& version, const std::string& form);
  HttpResponse call_shared_memory(const std::vector<std::string>& parts, const std::string& body, bool post);
  void control(Call& call, std::function<void()> action);
  HttpResponse get(const std::vector<std::string>& parts);
  HttpResponse get_model(const std::string& model, const std::string& version, const std::string& what);
  void post(Call& call, const std::vector<std::string>& parts);
  HttpResponse index(const std::string& body) const;

  Repository& repository_;
  ServiceOptions options_;
  SharedMemory shared_memory_;
  std::atomic<bool> ready_{false};
  std::atomic<uint64_t> requests_{0};
  const Clock::time_point started_ = Clock::now();
};

/// Splits the path of a target at slashes, and decodes escapes such as %20. A query after "?" is ignored.
/// Throws: RequestError if an escape is invalid
std::vector<std::string> path_parts(const std::string& target);

}  // namespace bellows::serve
