#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Timeouts and retries of a request.
struct HttpOptions {
  /// The maximum number of consecutive attempts in which less than 1 MiB is received. Permanent errors are not retried.
  int attempts = 5;
  int64_t connect_timeout_ms = 10'000;  ///< limit for establishing the connection, per attempt
  int64_t stall_timeout_ms = 30'000;    ///< if nothing is received for this time, the transfer is aborted and retried
  /// Delay before the first retry. It doubles with each retry, up to 30 s. The actual delay is a random value between
  /// half of this delay and the full delay.
  int64_t backoff_ms = 500;
  /// Token that is sent as `Authorization: Bearer …`. It is not sent to another host that a redirect names. "": none
  std::string bearer_token = {};
};

/// The server refused a request permanently.
class HttpRefusal : public c10::ValueError {
 public:
  HttpRefusal(c10::SourceLocation where, std::string message, long status)
      : c10::ValueError(where, std::move(message)), status_(status) {}
  /// The HTTP status, such as 404.
  long status() const { return status_; }

 private:
  long status_;
};

/// The version of a file on a server.
struct HttpFile {
  uint64_t size = 0;
  std::string etag;           ///< "" if the server sends none
  std::string last_modified;  ///< "" if the server sends none
  bool operator==(const HttpFile&) const = default;
};

/// Receives the bytes of a file.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  /// Announces that the next bytes start at `offset`, which is the end of the content received so far. It is 0 if the
  /// file has changed and must be received again. Returns false if the sink does not need any bytes.
  virtual bool begin(const HttpFile& file, uint64_t offset) = 0;
  virtual void write(ByteSpan bytes) = 0;
};

/// True for `http://…` and `https://…`.
bool is_url(std::string_view name);
/// Returns the URL for messages and storage. User, password, query and fragment are removed, because they can contain
/// signatures.
std::string public_url(std::string_view url);
/// Returns the part of the URL that identifies the file. User, password, fragment and the query parameters of
/// signatures (the names that S3, Google, Azure and CloudFront use) are removed.
std::string unsigned_url(std::string_view url);

/// Downloads a file, or the missing rest of it. If the connection breaks, range requests resume the download. The
/// function follows redirects and uses the proxies of the environment (http_proxy, https_proxy, no_proxy). It sends
/// only GET requests, because signed URLs do not allow other requests.
/// Params:  known, offset – the content of the sink, which is the first `offset` bytes of version `known`. If the
///          content is complete (offset == known.size > 0), the server is asked whether the file has changed. If it has
///          not, the sink receives nothing
/// Returns: the version of the sink's content, or the server's version if the sink did not need any bytes
/// Threads: thread-safe; after a stop request, the function ends within a second
/// Throws:  c10::ValueError if the server refuses the request (HttpRefusal if it answers with a status), if there are
///          too many redirects, or if the server does not send the file's size. c10::Error if the last attempt failed.
///          These messages state the URL (public_url()), the status or the reason, and the number of bytes received so
///          far. Other exceptions are c10::Error if a stop is requested through `stop`, Stopped after request_stop(),
///          and the exceptions of `sink`
HttpFile http_get(const std::string& url, const HttpFile& known, uint64_t offset, HttpSink& sink,
                  const HttpOptions& options = {}, const std::stop_token& stop = {});

/// Reads the bytes [offset, offset + out.size()) of a file by a range request.
/// Params:  known – the version that http_look() returned
///          out – its range must be within the file
/// Returns: false if the server does not support ranges, or if the file has changed. The content of `out` is then
///          undefined
/// Throws:  like http_get()
bool http_read(const std::string& url, const HttpFile& known, uint64_t offset, std::span<std::byte> out,
               const HttpOptions& options = {}, const std::stop_token& stop = {});

/// Returns the version of the file at `url`. The function requests only the first byte of the file.
/// Throws: like http_get()
HttpFile http_look(const std::string& url, const HttpOptions& options = {}, const std::stop_token& stop = {});

}  // namespace bellows::io
