#pragma once

#include <stdexcept>
#include <string>

namespace bellows::serve {

/// An error that a client receives as the protocol's error object, with this HTTP status.
class RequestError : public std::runtime_error {
 public:
  /// Params: retry_after_s – if it is not 0, the response states after how many seconds the client may try again
  RequestError(int status, const std::string& message, int retry_after_s = 0)
      : std::runtime_error(message), status_(status), retry_after_s_(retry_after_s) {}

  int status() const { return status_; }
  int retry_after_s() const { return retry_after_s_; }

 private:
  int status_;
  int retry_after_s_;
};

inline constexpr int status_bad_request = 400, status_unauthorized = 401, status_not_found = 404, status_conflict = 409,
                     status_cancelled = 499, status_internal = 500, status_unsupported = 501, status_unavailable = 503;

}  // namespace bellows::serve
