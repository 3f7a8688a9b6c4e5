#pragma once

#include <c10/util/StringUtil.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "bellows/io/network/http.h"
#include "bellows/system/stop.h"

namespace bellows::io {

/// Information about a file from the headers of a response.
struct HttpHeaders {
  HttpFile file;                               ///< without the size, which depends on several header lines
  std::optional<uint64_t> length;              ///< Content-Length
  std::optional<uint64_t> range_begin, total;  ///< from Content-Range: "bytes 5-9/10", or "bytes */10"

  /// Parses one header line. A status line resets all values, because it starts a new response, for example after a
  /// redirect.
  void take(std::string_view line);
};

/// The result of one request.
struct HttpAnswer {
  long status = 0;           ///< HTTP status; 0: no response
  std::string trouble;       ///< the error; "" if there was none
  bool can_repeat = false;   ///< true: another request may succeed
  bool start_again = false;  ///< true: the next request must be for the complete file
  bool wanted = true;        ///< false: the sink did not need any bytes
  int64_t retry_after_s = 0;
  HttpFile file;
};

/// One request with libcurl.
class HttpTransfer {
 public:
  HttpTransfer(const std::string& url, const HttpOptions& options, const std::stop_token& stop)
      : url_(url),
        options_(options),
        stop_(stop),
        silence_(public_url(url) + ", which sends nothing",
                 c10::str("the attempt ends after ", options.stall_timeout_ms / 1000, " s")) {}

  /// Params: known, offset – see http_get()
  ///         end – if set, only the bytes from `offset` to `end` are requested, and a response with the complete file
  ///         is rejected
  HttpAnswer run(const HttpFile& known, uint64_t offset, std::optional<uint64_t> end, HttpSink& sink);
  /// The number of bytes that the sink received.
  uint64_t received() const { return received_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Callbacks;
  bool may_go_on(int64_t bytes);
  void set_options(char* reason);
  bool take_body(ByteSpan bytes);
  bool begin();
  long status() const;
  void describe_refusal(HttpAnswer& answer) const;
  HttpAnswer answer_of(int code, const char* reason);

  const std::string& url_;
  const HttpOptions& options_;
  const std::stop_token& stop_;

  void* curl_ = nullptr;
  HttpSink* sink_ = nullptr;
  HttpFile known_;
  HttpHeaders headers_;
  uint64_t offset_ = 0, received_ = 0;
  std::optional<uint64_t> end_;
  int64_t last_bytes_ = -1;
  Clock::time_point last_change_;
  LongWait silence_;
  bool stalled_ = false;
  bool begun_ = false, wanted_ = true, start_again_ = false;
  std::string mismatch_;  ///< why the response does not match the request
  std::string refusal_;   ///< the start of an error response's body
  std::exception_ptr sink_error_;
};

}  // namespace bellows::io
