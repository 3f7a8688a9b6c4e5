#include <google/protobuf/util/json_util.h>
#include <grpcpp/support/async_unary_call.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/report/json_text.h"
#include "bellows/serve/grpc/infer_call_impl.h"
#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;

/// Returns a part of a URL, with escapes for all other characters than letters, digits, "-", "_" and ".".
std::string url_part(const std::string& text) {
  std::string part;
  for (const char c : text) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    std::array<char, 4> escape{};
    if (!plain) std::snprintf(escape.data(), escape.size(), "%%%02x", static_cast<unsigned char>(c));
    plain ? part += c : part += escape.data();
  }
  return part;
}

HttpRequest get(const std::string& target) {
  return {.method = "GET", .target = target};
}
HttpRequest post(const std::string& target, const std::string& body = "") {
  return {.method = "POST", .target = target, .body = body};
}

template <class Request>
std::string model_url(const Request& request) {
  if (request.name().empty()) throw RequestError(status_bad_request, "`name` must be the name of a model, got \"\".");
  return "/v2/models/" + url_part(request.name()) +
         (request.version().empty() ? "" : "/versions/" + url_part(request.version()));
}

std::string region_url(const std::string& name) {
  return name.empty() ? "/v2/systemsharedmemory" : "/v2/systemsharedmemory/region/" + url_part(name);
}

/// The parameters of a request to load or unload a model.
template <class Request>
std::string control_body(const Request& request) {
  ordered_json parameters = ordered_json::object();
  for (const auto& [key, value] : request.parameters())
    parameters[key] = value.has_bool_param() ? ordered_json(value.bool_param()) : ordered_json("");
  return json_text(ordered_json{{"parameters", std::move(parameters)}});
}

template <class Request>
HttpRequest control_request(const Request& request, const char* action) {
  if (request.model_name().empty())
    throw RequestError(status_bad_request, "`model_name` must be the name of a model, got \"\".");
  return post("/v2/repository/models/" + url_part(request.model_name()) + "/" + action, control_body(request));
}

/// Reads a message from the JSON text of the HTTP service.
template <class Response>
void read_json(Response& response, const std::string& json) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &response, options);
  if (!status.ok()) throw RequestError(status_internal, "cannot convert the answer: " + status.ToString());
}

void check(const HttpResponse& response) {
  constexpr int least_error = 400;
  if (response.status < least_error) return;
  const ordered_json json = ordered_json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  throw RequestError(response.status, json.is_object() ? json.value("error", response.body) : response.body);
}

/// A method of the service. `request` translates it to a request of the HTTP service, and `response` its answer.
template <class Request, class Response>
struct Method {
  void (AsyncService::*receive)(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Response>*,
                                grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*);
  HttpRequest (*request)(const Request&);
  void (*response)(const HttpResponse&, Response&);
  const char* name;
};

/// One call of a method.
template <class Request, class Response>
class ControlCall final : public std::enable_shared_from_this<ControlCall<Request, Response>> {
 public:
  ControlCall(CallContext& context, const Method<Request, Response>& method) : context_(context), method_(method) {}

  static void accept(CallContext& context, const Method<Request, Response>& method) {
    const auto call = std::make_shared<ControlCall>(context, method);
    (context.service.*method.receive)(&call->server_, &call->request_, &call->writer_, context.queue.get(),
                                      context.queue.get(), call->received_event_.arm(call));
  }

 private:
  void on_received(bool ok) {
    if (!ok || !active_.begin(context_)) return;
    received_ = Clock::now();
    accept(context_, method_);
    try {
      HttpRequest request = method_.request(request_);
      client_ = check_client(context_, server_, request.target);
      request.received = received_;
      context_.handler.handle(
          std::move(request),
          [self = this->shared_from_this()](const std::function<HttpResponse()>& make) { self->answer(make); });
    } catch (const std::exception& error) {
      finish(grpc_status(error));
    }
  }

  void answer(const std::function<HttpResponse()>& make) {
    Response response;
    try {
      method_.response(make(), response);
    } catch (const std::exception& error) {
      return finish(grpc_status(error));
    }
    log_request(context_, server_, client_, method_.name, "", grpc::Status::OK, received_);
    writer_.Finish(response, grpc::Status::OK, finished_.arm(this->shared_from_this()));
  }

  void finish(const grpc::Status& status) {
    log_request(context_, server_, client_, method_.name, "", status, received_);
    writer_.FinishWithError(status, finished_.arm(this->shared_from_this()));
  }

  void on_finished(bool) { active_.end(); }

  CallContext& context_;
  const Method<Request, Response> method_;
  grpc::ServerContext server_{};
  Request request_{};
  grpc::ServerAsyncResponseWriter<Response> writer_{&server_};
  MemberEvent<ControlCall> received_event_{&ControlCall::on_received};
  MemberEvent<ControlCall> finished_{&ControlCall::on_finished};
  Clock::time_point received_{};
  std::string client_{};  ///< see Service::client_of()
  ActiveCall active_{};
};

template <class Request, class Response>
void accept(CallContext& context, const Method<Request, Response>& method) {
  ControlCall<Request, Response>::accept(context, method);
}

template <class Response>
void from_json(const HttpResponse& http, Response& response) {
  check(http);
  read_json(response, http.body);
}
template <class Response>
void only_check(const HttpResponse& http, Response&) {
  check(http);
}

void accept_server_methods(CallContext& context) {
  using namespace inference;  // NOLINT(google-build-using-namespace): the names of all messages
  accept<ServerLiveRequest, ServerLiveResponse>(
      context, {&AsyncService::RequestServerLive, [](const ServerLiveRequest&) { return get("/v2/health/live"); },
                [](const HttpResponse& http, ServerLiveResponse& response) { response.set_live(http.status == 200); },
                "ServerLive"});
  accept<ServerReadyRequest, ServerReadyResponse>(
      context, {&AsyncService::RequestServerReady, [](const ServerReadyRequest&) { return get("/v2/health/ready"); },
                [](const HttpResponse& http, ServerReadyResponse& response) { response.set_ready(http.status == 200); },
                "ServerReady"});
  accept<ServerMetadataRequest, ServerMetadataResponse>(
      context, {&AsyncService::RequestServerMetadata, [](const ServerMetadataRequest&) { return get("/v2"); },
                from_json<ServerMetadataResponse>, "ServerMetadata"});
}

void accept_shared_memory_methods(CallContext& context) {
  using namespace inference;  // NOLINT(google-build-using-namespace): the names of all messages
  accept<SystemSharedMemoryStatusRequest, SystemSharedMemoryStatusResponse>(
      context,
      {&AsyncService::RequestSystemSharedMemoryStatus,
       [](const SystemSharedMemoryStatusRequest& request) { return get(region_url(request.name()) + "/status"); },
       [](const HttpResponse& http, SystemSharedMemoryStatusResponse& response) {
         check(http);
         ordered_json regions = ordered_json::object();
         for (ordered_json& region : ordered_json::parse(http.body))
           regions[region["name"].get<std::string>()] = region;
         read_json(response, json_text(ordered_json{{"regions", std::move(regions)}}));
       },
       "SystemSharedMemoryStatus"});
  accept<SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse>(
      context, {&AsyncService::RequestSystemSharedMemoryRegister,
                [](const SystemSharedMemoryRegisterRequest& request) {
                  if (request.name().empty())
                    throw RequestError(status_bad_request, "`name` must be the name of a region, got \"\".");
                  const ordered_json body = {
                      {"key", request.key()}, {"offset", request.offset()}, {"byte_size", request.byte_size()}};
                  return post(region_url(request.name()) + "/register", json_text(body));
                },
                only_check<SystemSharedMemoryRegisterResponse>, "SystemSharedMemoryRegister"});
  accept<SystemSharedMemoryUnregisterRequest, SystemSharedMemoryUnregisterResponse>(
      context, {&AsyncService::RequestSystemSharedMemoryUnregister,
                [](const SystemSharedMemoryUnregisterRequest& request) {
                  return post(region_url(request.name()) + "/unregister");
                },
                only_check<SystemSharedMemoryUnregisterResponse>, "SystemSharedMemoryUnregister"});
}

void accept_model_methods(CallContext& context) {
  using namespace inference;  // NOLINT(google-build-using-namespace): the names of all messages
  accept<ModelReadyRequest, ModelReadyResponse>(
      context, {&AsyncService::RequestModelReady,
                [](const ModelReadyRequest& request) { return get(model_url(request) + "/ready"); },
                [](const HttpResponse& http, ModelReadyResponse& response) { response.set_ready(http.status == 200); },
                "ModelReady"});
  accept<ModelMetadataRequest, ModelMetadataResponse>(
      context,
      {&AsyncService::RequestModelMetadata, [](const ModelMetadataRequest& request) { return get(model_url(request)); },
       from_json<ModelMetadataResponse>, "ModelMetadata"});
  accept<ModelConfigRequest, ModelConfigResponse>(
      context, {&AsyncService::RequestModelConfig,
                [](const ModelConfigRequest& request) { return get(model_url(request) + "/config"); },
                [](const HttpResponse& http, ModelConfigResponse& response) {
                  check(http);
                  read_json(*response.mutable_config(), http.body);
                },
                "ModelConfig"});
  accept<ModelStatisticsRequest, ModelStatisticsResponse>(
      context, {&AsyncService::RequestModelStatistics,
                [](const ModelStatisticsRequest& request) {
                  return get(request.name().empty() ? "/v2/models/stats" : model_url(request) + "/stats");
                },
                from_json<ModelStatisticsResponse>, "ModelStatistics"});
}

void accept_repository_methods(CallContext& context) {
  using namespace inference;  // NOLINT(google-build-using-namespace): the names of all messages
  accept<RepositoryIndexRequest, RepositoryIndexResponse>(
      context, {&AsyncService::RequestRepositoryIndex,
                [](const RepositoryIndexRequest& request) {
                  return post("/v2/repository/index", request.ready() ? R"({"ready": true})" : "");
                },
                [](const HttpResponse& http, RepositoryIndexResponse& response) {
                  check(http);
                  read_json(response, "{\"models\":" + http.body + "}");
                },
                "RepositoryIndex"});
  accept<RepositoryModelLoadRequest, RepositoryModelLoadResponse>(
      context, {&AsyncService::RequestRepositoryModelLoad,
                [](const RepositoryModelLoadRequest& request) { return control_request(request, "load"); },
                only_check<RepositoryModelLoadResponse>, "RepositoryModelLoad"});
  accept<RepositoryModelUnloadRequest, RepositoryModelUnloadResponse>(
      context, {&AsyncService::RequestRepositoryModelUnload,
                [](const RepositoryModelUnloadRequest& request) { return control_request(request, "unload"); },
                only_check<RepositoryModelUnloadResponse>, "RepositoryModelUnload"});
}

}  // namespace

void accept_control_calls(CallContext& context) {
  accept_server_methods(context);
  accept_shared_memory_methods(context);
  accept_model_methods(context);
  accept_repository_methods(context);
}

}  // namespace bellows::serve
