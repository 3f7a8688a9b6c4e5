#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Timeouts and retries of a request.
struct HttpOptions {
  /// Maximum number of consecutive attempts that receive less than 1 MiB; permanent errors are not retried
  int attempts = 5;
  int64_t connect_timeout_ms = 10'000;  ///< of one attempt
  int64_t stall_timeout_ms = 30'000;    ///< a transfer that receives nothing for this time is aborted and retried
  /// Delay before the first retry; it doubles up to 30 s, and a random half of it is used
  int64_t backoff_ms = 500;
};

/// The version of a file on a server.
struct HttpFile {
  uint64_t size = 0;
  std::string etag;           ///< "" if the server sends none
  std::string last_modified;  ///< likewise
  bool operator==(const HttpFile&) const = default;
};

/// Receives a file's bytes.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  /// Announces that the next bytes start at `offset`: at the sink's own end, or at 0 to start again because the file
  /// has changed. Returns false if the sink does not need any bytes.
  virtual bool begin(const HttpFile& file, uint64_t offset) = 0;
  virtual void write(ByteSpan bytes) = 0;
};

/// True for `http://…` and `https://…`.
bool is_url(std::string_view name);
/// The URL for messages and storage: without user, password, query and fragment, which may contain signatures.
std::string public_url(std::string_view url);
/// The part of the URL that identifies the file: without user, password, fragment and the query parameters of
/// signatures (the names used by S3, Google, Azure and CloudFront).
std::string unsigned_url(std::string_view url);

/// Downloads a file, or the missing rest of it, and resumes by range requests if the connection breaks. It follows
/// redirects and uses the proxies of the environment (http_proxy, https_proxy, no_proxy). It sends only GET requests,
/// because signed URLs allow no others.
/// Params:  known, offset – the content of the sink: the first `offset` bytes of that version. If it is complete
///          (offset == known.size > 0), the server is asked whether the file is unchanged; if so, the sink receives
///          nothing
/// Returns: the version that the sink has now, or the server's version if the sink did not need any bytes
/// Threads: thread-safe; a stop request ends it within a second
/// Throws:  c10::ValueError if the server refuses the request (the message names the status), if redirects do not end,
///          or if the server does not send the file's size; c10::Error if the last attempt failed. The message names
///          the URL (public_url), the status or reason, and the bytes received so far
HttpFile http_get(const std::string& url, const HttpFile& known, uint64_t offset, HttpSink& sink,
                  const HttpOptions& options = {}, const std::stop_token& stop = {});

/// Reads the bytes [offset, offset + out.size()) of a file by a range request.
/// Params:  known – the version returned by http_look
///          out – its range must be within the file
/// Returns: false if the server does not support ranges or the file has changed; the content of `out` is then undefined
/// Throws:  as http_get
bool http_read(const std::string& url, const HttpFile& known, uint64_t offset, std::span<std::byte> out,
               const HttpOptions& options = {}, const std::stop_token& stop = {});

/// Returns the version of the file under `url`, by a request for its first byte.
/// Throws: as http_get
HttpFile http_look(const std::string& url, const HttpOptions& options = {}, const std::stop_token& stop = {});

}  // namespace bellows::io
