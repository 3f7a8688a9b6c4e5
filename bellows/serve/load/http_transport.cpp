#include <c10/util/Exception.h>

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/serve/load/http_client_impl.h"
#include "bellows/serve/load/transport_impl.h"

namespace bellows::serve {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Json = nlohmann::json;

struct Address {
  std::string host{}, port = "8000";
  std::string text() const { return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port; }
};

Address parse_url(const std::string& url) {
  TORCH_CHECK_VALUE(!url.starts_with("https://"), "`url`: https is not supported, got ", url,
                    ". Use the http address of the server.");
  std::string rest = url.starts_with("http://") ? url.substr(7) : url;
  while (rest.ends_with('/')) rest.pop_back();
  Address address;
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  address.host = rest.substr(0, colon);
  if (colon != std::string::npos) address.port = rest.substr(colon + 1);
  if (bracket != std::string::npos) address.host = rest.substr(1, bracket - 1);
  const bool numeric = !address.port.empty() && address.port.size() <= 5 &&
                       address.port.find_first_not_of("0123456789") == std::string::npos;
  TORCH_CHECK_VALUE(!address.host.empty() && numeric, "`url`: expected HOST:PORT, such as 127.0.0.1:8000, got \"", url,
                    "\".");
  return address;
}

double seconds_of(const Json& stats, const char* name) {
  const auto found = stats.find(name);
  return found == stats.end() ? 0 : 1e-9 * found->value("ns", 0.0);
}

std::optional<ServerCounters> parse_counters(const HttpAnswer& answer) {
  if (answer.status != 200) return std::nullopt;
  const Json value = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("model_stats") || value["model_stats"].empty()) return std::nullopt;
  ServerCounters counters;
  try {
    for (const Json& model : value["model_stats"]) {
      const Json& stats = model.at("inference_stats");
      counters.requests += stats.at("success").value("count", uint64_t{0});
      counters.rows += model.value("inference_count", uint64_t{0});
      counters.executions += model.value("execution_count", uint64_t{0});
      counters.queue_s += seconds_of(stats, "queue");
      counters.input_s += seconds_of(stats, "compute_input");
      counters.compute_s += seconds_of(stats, "compute_infer");
      counters.output_s += seconds_of(stats, "compute_output");
    }
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return counters;
}

/// Returns the message of an error object, or the beginning of the body.
std::string error_text(const std::string& body) {
  constexpr size_t most = 300;
  const Json value = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (value.is_object() && value.contains("error") && value["error"].is_string()) return value["error"];
  return body.substr(0, most);
}

LoadAnswer load_answer(const HttpAnswer& answer) {
  if (answer.status == 200) return {.ok = true};
  if (answer.status != 0) return {.error = std::to_string(answer.status), .message = error_text(answer.body)};
  return {.connected = false, .error = answer.connected ? answer.problem : "cannot connect", .message = answer.problem};
}

class HttpLoadConnection final : public LoadConnection {
 public:
  HttpLoadConnection(asio::io_context& io, const tcp::endpoint& endpoint, const std::vector<std::string>& requests)
      : connection_(std::make_shared<HttpClientConnection>(io, endpoint, /*keep=*/false)), requests_(requests) {}
  ~HttpLoadConnection() override { connection_->abort(); }

  void send(size_t request, std::function<void(LoadAnswer)> done) override {
    connection_->send(requests_[request],
                      [done = std::move(done)](const HttpAnswer& answer) { done(load_answer(answer)); });
  }
  void abort() override { connection_->abort(); }

 private:
  std::shared_ptr<HttpClientConnection> connection_;
  const std::vector<std::string>& requests_;
};

class HttpTransport final : public LoadTransport {
 public:
  explicit HttpTransport(const LoadOptions& options) : options_(options), address_(parse_url(options.url)) {
    asio::io_context io;
    boost::system::error_code error;
    const auto found = tcp::resolver(io).resolve(address_.host, address_.port, error);
    TORCH_CHECK_VALUE(!error && !found.empty(), "the host \"", address_.host,
                      "\" of `url` is unknown: ", error.message(), ".");
    for (const auto& one : found) endpoints_.push_back(one.endpoint());
    endpoint_ = endpoints_.front();
    path_ = "/v2/models/" + options.model + (options.version.empty() ? "" : "/versions/" + options.version);
  }

  std::string server() override {
    HttpAnswer answer;
    for (const tcp::endpoint& endpoint : endpoints_) {  // localhost can be ::1 and 127.0.0.1
      endpoint_ = endpoint;
      answer = get("/v2");
      if (answer.status != 0) break;
    }
    TORCH_CHECK_VALUE(
        answer.status != 0, "no server answers at ", address_.text(), ": ", answer.problem,
        ". Start a server, such as `bellows serve --model-repository DIR`, or pass its address with `url`.");
    const Json value = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK_VALUE(answer.status != 401 && answer.status != 403, "the server at ", address_.text(),
                      " answers with status ", answer.status,
                      ". Pass a token, such as --header \"Authorization: Bearer TOKEN\".");
    if (answer.status != 200 || !value.is_object()) return "";
    return value.value("name", "") + " " + value.value("version", "");
  }

  LoadMetadata metadata() override {
    const HttpAnswer answer = get(path_);
    TORCH_CHECK_VALUE(answer.status == 200, "the server at ", address_.text(), " has no model \"", options_.model, "\"",
                      options_.version.empty() ? "" : " with version " + options_.version, ": ",
                      answer.status == 0 ? answer.problem
                                         : "status " + std::to_string(answer.status) + ", " + error_text(answer.body),
                      models());
    return parse_metadata(answer.body);
  }

  uint64_t prepare(const std::vector<LoadRequest>& requests) override {
    requests_.clear();
    for (const LoadRequest& request : requests) {
      const LoadBody body = request_body(request, options_.json);
      std::string head =
          "Content-Type: " + std::string(options_.json ? "application/json" : "application/octet-stream") +
          "\r\nContent-Length: " + std::to_string(body.text.size()) + "\r\n";
      if (body.header_bytes > 0)
        head += "Inference-Header-Content-Length: " + std::to_string(body.header_bytes) + "\r\n";
      requests_.push_back(request_head("POST", path_ + "/infer") + head + "\r\n" + body.text);
    }
    return requests_.front().size();
  }

  LoadAnswer ask(size_t request, std::string& body) override {
    HttpAnswer answer = exchange(requests_[request]);
    LoadAnswer result = load_answer(answer);
    body = std::move(answer.body);
    return result;
  }

  std::unique_ptr<LoadConnection> connect(asio::io_context& io) override {
    return std::make_unique<HttpLoadConnection>(io, endpoint_, requests_);
  }

  void counters(asio::io_context& io, std::function<void(std::optional<ServerCounters>)> done) override {
    counter_request_ = request_head("GET", path_ + "/stats") + "\r\n";
    const auto connection = std::make_shared<HttpClientConnection>(io, endpoint_, /*keep=*/true);
    connection->send(counter_request_,
                     [done = std::move(done)](const HttpAnswer& answer) { done(parse_counters(answer)); });
  }

 private:
  std::string request_head(const std::string& method, const std::string& target) const {
    std::string head = method + " " + target + " HTTP/1.1\r\nHost: " + address_.text() + "\r\n";
    for (const auto& [name, value] : options_.headers) head.append(name).append(": ").append(value).append("\r\n");
    return head;
  }

  /// Sends a request and waits for the response.
  HttpAnswer exchange(const std::string& request) const {
    asio::io_context io;
    HttpAnswer result{.problem = "no answer within the timeout", .connected = true};
    const auto connection = std::make_shared<HttpClientConnection>(io, endpoint_, /*keep=*/true);
    connection->send(request, [&](HttpAnswer answer) { result = std::move(answer); });
    io.run_for(
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(options_.timeout_s)));
    connection->abort();
    io.restart();
    io.poll();  // releases the handlers
    return result;
  }
  HttpAnswer get(const std::string& target) const { return exchange(request_head("GET", target) + "\r\n"); }

  /// A sentence with the models that the server has, or an empty text.
  std::string models() const {
    const HttpAnswer answer = exchange(request_head("POST", "/v2/repository/index") + "Content-Length: 0\r\n\r\n");
    const Json value = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (answer.status != 200 || !value.is_array()) return "";
    std::string list;
    for (const Json& model : value)
      if (model.is_object() && model.value("state", "READY") == "READY")
        list += (list.empty() ? "" : ", ") + model.value("name", "");
    return list.empty() ? " The server has no model that is ready." : " Models that are ready: " + list + ".";
  }

  const LoadOptions& options_;
  Address address_;
  std::vector<tcp::endpoint> endpoints_{};
  tcp::endpoint endpoint_{};
  std::string path_{};
  std::vector<std::string> requests_{};
  std::string counter_request_{};
};

}  // namespace

std::unique_ptr<LoadTransport> http_transport(const LoadOptions& options) {
  return std::make_unique<HttpTransport>(options);
}

}  // namespace bellows::serve
