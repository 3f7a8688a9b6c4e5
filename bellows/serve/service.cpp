#include "bellows/serve/service.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/version.h"
#include "bellows/report/json_text.h"
#include "bellows/serve/page/status_page.h"
#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"
#include "bellows/serve/text/generate.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

namespace {

using nlohmann::ordered_json;
using PathParts = std::vector<std::string>;

HttpResponse json_response(const ordered_json& json) {
  return {.body = json_text(json)};
}

[[noreturn]] void no_such_url() {
  throw RequestError(status_not_found, "there is no such URL. docs/serve.md lists the URLs of the server.");
}

/// Any web page that a user of this machine visits could send requests to a server without tokens. Browsers mark these.
void reject_other_sites(const HttpHeaders& headers) {
  constexpr int status_forbidden = 403;
  if (headers.value("Sec-Fetch-Site") == "cross-site" && !headers.value("Origin").empty())
    throw RequestError(status_forbidden, "web pages of other sites may not use this server, because it has no tokens.");
}

HttpResponse empty_response(bool good) {
  return {.status = good ? 200 : status_bad_request, .content_type = "text/plain"};
}

ordered_json metadata_of_server(bool shared_memory) {
  ordered_json extensions = {"classification",  "model_repository",    "model_repository(unload_dependents)",
                             "schedule_policy", "model_configuration", "binary_tensor_data",
                             "parameters",      "statistics",          "sequence",
                             "generate"};
  if (shared_memory) extensions.push_back("system_shared_memory");
  return {{"name", "bellows"}, {"version", BELLOWS_VERSION}, {"extensions", std::move(extensions)}};
}

ordered_json tensors_json(const std::vector<TensorSpec>& specs, bool batched) {
  ordered_json json = ordered_json::array();
  for (const TensorSpec& spec : specs) {
    std::vector<int64_t> shape = spec.dims;
    if (batched) shape.insert(shape.begin(), -1);
    json.push_back({{"name", spec.name}, {"datatype", type_name(spec.dtype)}, {"shape", shape}});
  }
  return json;
}

ordered_json metadata_of_model(const ModelSignature& model, const PathParts& versions) {
  const bool batched = model.max_batch_size > 0;
  return {{"name", model.name},
          {"versions", versions},
          {"platform", model.platform},
          {"inputs", tensors_json(model.inputs, batched)},
          {"outputs", tensors_json(model.outputs, batched)}};
}

std::optional<size_t> header_length(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  size_t length = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, length);
  if (error != std::errc() || stop != end)
    throw RequestError(status_bad_request,
                       "Inference-Header-Content-Length: expected an integer of at least 0, got \"" + *text + "\".");
  return length;
}

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

std::string timing_note(const RequestTimes& times) {
  std::array<char, 96> text;
  std::snprintf(text.data(), text.size(), "queue %.3f ms, model %.3f ms", ms_between(times.queued, times.taken),
                ms_between(times.inputs_ready, times.computed));
  return text.data();
}

/// Params: form – "infer", "generate" or "generate_stream"
HttpResponse infer_response(const ExpectedAnswer& expected, const InferenceResult& result, const std::string& form) {
  if (result.error) throw *result.error;
  if (form != "infer") {
    const std::string json =
        format_generate_response(*expected.model, expected.id, expected.outputs, result.outputs, result.bytes);
    if (form == "generate") return {.body = json, .log_note = timing_note(result.times)};
    return {
        .content_type = "text/event-stream", .body = server_sent_event(json), .log_note = timing_note(result.times)};
  }
  InferResponse written =
      format_infer_response(*expected.model, expected.id, expected.outputs, result.outputs, result.bytes);
  HttpResponse response{.body = std::move(written.body), .log_note = timing_note(result.times)};
  if (written.header_bytes) {
    response.content_type = "application/octet-stream";
    response.headers.emplace_back("Inference-Header-Content-Length", std::to_string(*written.header_bytes));
  }
  return response;
}

HttpResponse traced_error(const std::exception& error, const std::shared_ptr<RequestTrace>& trace) {
  HttpResponse response = error_response(error);
  trace->error = user_message(error);
  response.sent = {trace, &trace->response};
  return response;
}

HttpResponse traced_response(const ExpectedAnswer& expected, const InferenceResult& result, const std::string& form) {
  const std::shared_ptr<RequestTrace>& trace = expected.trace;
  if (!trace) return infer_response(expected, result, form);
  trace->times = result.times;
  try {
    HttpResponse response = infer_response(expected, result, form);
    response.sent = {trace, &trace->response};
    return response;
  } catch (const std::exception& error) {
    return traced_error(error, trace);
  }
}

}  // namespace

struct Service::Call {
  HttpRequest request;
  Respond respond;
};

std::vector<std::string> path_parts(const std::string& target) {
  const std::string path = target.substr(0, target.find('?'));
  std::vector<std::string> parts;
  std::string part;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '/') {
      if (i > 0) parts.push_back(std::exchange(part, {}));
    } else if (path[i] == '%') {
      unsigned value = 0;
      const char* begin = path.data() + i + 1;
      const bool enough = i + 2 < path.size();
      if (!enough || std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2)
        throw RequestError(status_bad_request, "the URL has an invalid escape.");
      part += static_cast<char>(value);
      i += 2;
    } else {
      part += path[i];
    }
  }
  if (!part.empty()) parts.push_back(part);
  return parts;
}

HttpResponse error_response(const std::exception& error) {
  const auto* known = dynamic_cast<const RequestError*>(&error);
  HttpResponse response{.status = known ? known->status() : status_internal,
                        .body = error_json(known ? known->what() : user_message(error))};
  if (response.status == status_unauthorized) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (known && known->retry_after_s() > 0)
    response.headers.emplace_back("Retry-After", std::to_string(known->retry_after_s()));
  return response;
}

Service::Service(Repository& repository, ServiceOptions options)
    : repository_(repository), options_(std::move(options)), shared_memory_(options_.max_shared_memory) {}

std::string Service::admit(std::string_view target, const HttpHeaders& headers) const {
  if (!options_.tokens) {
    reject_other_sites(headers);
    return {};
  }
  return client_of(target, headers.value("Authorization"));
}

std::string Service::client_of(std::string_view target, std::string_view authorization) const {
  if (!options_.tokens) return {};
  const PathParts parts = path_parts(std::string(target));
  if (parts.empty()) return {};  // the page has no values of the server
  const bool health = parts == PathParts{"v2", "health", "live"} || parts == PathParts{"v2", "health", "ready"};
  if ((health && options_.open_health) || (parts == PathParts{"metrics"} && options_.open_metrics)) return {};
  return options_.tokens->check(authorization);
}

void Service::handle(HttpRequest request, Respond respond) {
  const std::string& coding = request.content_encoding;
  constexpr int status_media_type = 415, status_method = 405;
  if (!coding.empty() && coding != "identity")
    throw RequestError(status_media_type,
                       "the Content-Encoding \"" + coding + "\" is not supported. Send the body without it.");
  const PathParts parts = path_parts(request.target);
  Call call{std::move(request), std::move(respond)};
  if (call.request.method == "POST") return post(call, parts);
  if (call.request.method != "GET")
    throw RequestError(status_method, "the method " + call.request.method + " is not supported. Expected GET or POST.");
  call.respond([response = get(parts)] { return response; });
}

HttpResponse Service::get(const PathParts& parts) {
  if (parts.empty()) return status_page();
  if (parts == PathParts{"status"}) {
    const std::chrono::duration<double> uptime = Clock::now() - started_;
    return {.body = status_json(
                repository_,
                {.ready = ready_, .uptime_s = uptime.count(), .connections = options_.server_values().connections})};
  }
  if (parts == PathParts{"metrics"})
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
            .body = prometheus_text(repository_.statistics(), options_.server_values())};
  if (parts == PathParts{"v2"}) return json_response(metadata_of_server(options_.shared_memory));
  if (parts == PathParts{"v2", "health", "live"}) return empty_response(true);
  if (parts == PathParts{"v2", "health", "ready"}) return empty_response(ready_);
  if (parts == PathParts{"v2", "models", "stats"}) return {.body = statistics_json(repository_.statistics())};
  if (parts.size() > 2 && parts[1] == "systemsharedmemory") return call_shared_memory(parts, "", /*post=*/false);
  if (parts.size() < 3 || parts[0] != "v2" || parts[1] != "models") no_such_url();
  const bool versioned = parts.size() > 4 && parts[3] == "versions";
  const size_t end = versioned ? 5 : 3;
  if (parts.size() > end + 1 || (parts.size() > 3 && parts[3] == "versions" && !versioned)) no_such_url();
  return get_model(parts[2], versioned ? parts[4] : "", parts.size() > end ? parts[end] : "");
}

HttpResponse Service::get_model(const std::string& model, const std::string& version, const std::string& what) {
  if (what == "ready") {
    try {
      repository_.find(model, version);
    } catch (const RequestError&) {
      return empty_response(false);
    }
    return empty_response(true);
  }
  if (what == "stats") return {.body = statistics_json(repository_.statistics(model, version))};
  if (what == "config") return {.body = model_config_json(repository_.find(model, version)->config())};
  if (!what.empty()) no_such_url();
  return json_response(
      metadata_of_model(*repository_.find(model, version)->signature(), repository_.ready_versions(model)));
}

void Service::post(Call& call, const PathParts& parts) {
  const std::string form = parts.empty() ? "" : parts.back();
  if (form == "infer" || form == "generate" || form == "generate_stream") {
    if (parts.size() == 4 && parts[0] == "v2" && parts[1] == "models") return post_infer(call, parts[2], "", form);
    if (parts.size() == 6 && parts[0] == "v2" && parts[1] == "models" && parts[3] == "versions")
      return post_infer(call, parts[2], parts[4], form);
  }
  if (parts == PathParts{"v2", "repository", "index"}) {
    call.respond([response = index(call.request.body)] { return response; });
    return;
  }
  if (parts.size() > 2 && parts[1] == "systemsharedmemory") {
    call.respond([response = call_shared_memory(parts, call.request.body, /*post=*/true)] { return response; });
    return;
  }
  const bool model = parts.size() == 5 && parts[0] == "v2" && parts[1] == "repository" && parts[2] == "models";
  if (model && parts[4] == "load") return control(call, [this, name = parts[3]] { repository_.load(name); });
  if (model && parts[4] == "unload") return control(call, [this, name = parts[3]] { repository_.unload(name); });
  no_such_url();
}

/// Parts: v2, systemsharedmemory[, region, NAME], status or register or unregister
HttpResponse Service::call_shared_memory(const PathParts& parts, const std::string& body, bool post) {
  const std::string& action = parts.back();
  const bool region = parts.size() == 5 && parts[2] == "region";
  const bool known = post ? action == "unregister" || (action == "register" && region) : action == "status";
  if (parts[0] != "v2" || !known || (!region && parts.size() != 3)) no_such_url();
  if (!options_.shared_memory)
    throw RequestError(status_unsupported, "clients may not use shared memory of this server.");
  return {.body = shared_memory_call(shared_memory_, region ? parts[3] : "", action, body)};
}

HttpResponse Service::index(const std::string& body) const {
  bool only_ready = false;
  if (!body.empty()) {
    const ordered_json json = ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
    const bool valid = json.is_object() && (!json.contains("ready") || json["ready"].is_boolean());
    if (!valid) throw RequestError(status_bad_request, "expected a JSON object such as {\"ready\": true}.");
    only_ready = json.value("ready", false);
  }
  ordered_json list = ordered_json::array();
  for (const IndexEntry& entry : repository_.index()) {
    if (only_ready && entry.state != "READY") continue;
    ordered_json row = {{"name", entry.name}};
    if (!entry.version.empty()) row["version"] = entry.version;
    row["state"] = entry.state;
    row["reason"] = entry.reason;
    list.push_back(std::move(row));
  }
  return json_response(list);
}

void Service::control(Call& call, std::function<void()> action) {
  ++requests_;
  if (!options_.model_control)
    throw RequestError(status_bad_request, "clients may not load or unload models of this server.");
  const std::string& body = call.request.body;
  if (!body.empty()) {
    const ordered_json json = ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) throw RequestError(status_bad_request, "expected a JSON object, or no body.");
    const auto parameters = json.find("parameters");
    if (parameters != json.end() && parameters->is_object()) {
      for (const auto& [key, value] : parameters->items()) {
        if (key == "unload_dependents") continue;
        throw RequestError(status_unsupported,
                           "parameters: \"" + key + "\" is not supported. The files of the repository are used.");
      }
    }
  }
  options_.run_control([action = std::move(action), respond = std::move(call.respond)] {
    HttpResponse response;
    try {
      action();
    } catch (const std::exception& error) {
      response = error_response(error);
    }
    respond([response] { return response; });
  });
}

void Service::post_infer(const Call& call, const std::string& name, const std::string& version,
                         const std::string& form) {
  const HttpRequest& request = call.request;
  const auto header = [&](const char* key) { return request.headers ? request.headers->value(key) : ""; };
  const std::shared_ptr<RequestTrace> trace = start_trace({.traceparent = header("traceparent"),
                                                           .request_id = header("X-Request-Id"),
                                                           .client = request.client,
                                                           .received = request.received});
  const InferCall infer_call{
      .model = name,
      .version = version,
      .received = request.received,
      .cancelled = request.cancelled,
      .trace = trace,
      .parse =
          [&](const ModelSignature& model) {
            if (form != "infer") return parse_generate_request(request.body, model);
            return parse_infer_request(request.body, header_length(request.inference_header_length), model,
                                       shared_memory());
          },
      .done =
          [respond = call.respond, form](const std::shared_ptr<const ExpectedAnswer>& expected,
                                         InferenceResult result) {
            respond([expected, form, answer = std::move(result)] { return traced_response(*expected, answer, form); });
          }};
  if (!trace) return infer(infer_call);
  trace->model = name;
  trace->version = version;
  try {
    infer(infer_call);
  } catch (const std::exception& error) {
    call.respond([response = traced_error(error, trace)] { return response; });
  }
}

namespace {

Scheduler::Submitted submit(LoadedModel& model, PendingRequest& request) {
  try {
    return model.submit(request);
  } catch (const RequestError&) {
    model.statistics().add_failure(FailureReason::other, Clock::now() - request.times.received);
    throw;
  }
}

}  // namespace

void Service::infer(const InferCall& call) {
  ++requests_;
  // A version that is replaced meanwhile accepts no requests, but the new one is then ready.
  constexpr int attempts = 3;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const std::shared_ptr<LoadedModel> model = repository_.find(call.model, call.version);
    InferRequest parsed;
    try {
      parsed = call.parse(*model->signature());
    } catch (const RequestError&) {
      model->statistics().add_failure(FailureReason::other, Clock::now() - call.received);
      throw;
    }
    if (call.trace) {
      call.trace->parsed = Clock::now();
      call.trace->version = model->signature()->version;
      call.trace->rows = parsed.rows;
      if (call.trace->request_id.empty()) call.trace->request_id = parsed.id;
    }
    auto expected = std::make_shared<const ExpectedAnswer>(
        ExpectedAnswer{model->signature(), std::move(parsed.id), std::move(parsed.outputs), call.trace});
    PendingRequest pending{.inputs = std::move(parsed.inputs),
                           .bytes = std::move(parsed.bytes),
                           .rows = parsed.rows,
                           .priority = parsed.priority,
                           .timeout_us = parsed.timeout_us,
                           .sequence = parsed.sequence,
                           .times = {.received = call.received},
                           .cancelled = call.cancelled};
    pending.done = [expected, done = call.done](InferenceResult result) { done(expected, std::move(result)); };
    const Scheduler::Submitted submitted = submit(*model, pending);
    if (submitted == Scheduler::Submitted::queued) return;
    if (submitted == Scheduler::Submitted::draining) continue;
    model->statistics().add_failure(FailureReason::rejected, Clock::now() - call.received);
    throw RequestError(status_unavailable, "the queue of model \"" + call.model + "\" is full.", 1);
  }
  throw RequestError(status_unavailable, "model \"" + call.model + "\" is being unloaded.", 1);
}

}  // namespace bellows::serve
