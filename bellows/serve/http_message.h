#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/serve/statistics.h"

namespace bellows::serve {

/// The header fields of a request. The object exists only during the call that receives it.
class HttpHeaders {
 public:
  virtual ~HttpHeaders() = default;
  /// Returns the value of a field, or "" if the request does not have this field.
  /// Params: name – upper and lower case are the same
  virtual std::string_view value(std::string_view name) const = 0;
};

/// A complete request.
struct HttpRequest {
  std::string method{}, target{};
  std::string body{};
  std::string content_encoding{};
  std::optional<std::string> inference_header_length{};  ///< the header Inference-Header-Content-Length
  Clock::time_point received{};
  std::string client{};                  ///< what HttpHandler::admit() returned
  const HttpHeaders* headers = nullptr;  ///< valid until HttpHandler::handle() returns
  /// Becomes true when the client disconnects before the response.
  std::shared_ptr<const std::atomic<bool>> cancelled{};
};

/// The result of sending a response. The server fills the object when the response is complete.
struct SentResponse {
  int status = 0;            ///< 0: no response was sent
  uint64_t bytes = 0;        ///< size of the body
  Clock::time_point sent{};  ///< when the last byte was passed to the system
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
  std::string log_note{};                ///< added to the line of the access log
  std::shared_ptr<SentResponse> sent{};  ///< may be empty
};

/// Receives the function that creates the response. It must be called exactly once, on any thread. The server calls the
/// function on one of its own threads; its exceptions become error responses.
using Respond = std::function<void(std::function<HttpResponse()>)>;

/// Answers requests.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Called when the header of a request is complete, before its body is read.
  /// Returns: the name of the client for logs, or ""
  /// Threads: as handle()
  /// Throws:  RequestError if the client may not send this request. The connection is closed after the response
  virtual std::string admit(std::string_view target, const HttpHeaders& headers) const = 0;
  /// Threads: called concurrently on the threads of the server, so it must not wait
  /// Throws:  RequestError or other exceptions, which become error responses if `respond` was not called
  virtual void handle(HttpRequest request, Respond respond) = 0;
};

/// Returns the response for an exception: the status of a RequestError, and otherwise 500.
HttpResponse error_response(const std::exception& error);

}  // namespace bellows::serve
