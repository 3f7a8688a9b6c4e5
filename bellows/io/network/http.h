#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// How patient a request is.
struct HttpOptions {
  int attempts = 5;  ///< in a row that bring less than 1 MiB; what no repetition mends is not repeated
  int64_t connect_timeout_ms = 10'000;  ///< of one attempt
  int64_t stall_timeout_ms = 30'000;    ///< a transfer that brings nothing for so long is broken off and repeated
  int64_t backoff_ms = 500;  ///< before the first repetition; doubles up to 30 s, a random half of it is waited
};

/// Which content a server has under a URL.
struct HttpFile {
  uint64_t size = 0;
  std::string etag;           ///< "" where the server gives none
  std::string last_modified;  ///< likewise
  bool operator==(const HttpFile&) const = default;
};

/// What takes a file's bytes as they come.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  /// The bytes that follow start at `offset`: where the sink's own end, or 0 where it has to start again because the
  /// file is another one now. Returns false where no bytes are wanted.
  virtual bool begin(const HttpFile& file, uint64_t offset) = 0;
  virtual void write(ByteSpan bytes) = 0;
};

/// `http://…` or `https://…`.
bool is_url(std::string_view name);
/// The URL as it may be shown and kept: without user, password, query and fragment, where signatures stand.
std::string public_url(std::string_view url);
/// What tells files apart: the URL without user, password, fragment, and what a signature adds to the query (S3's,
/// Google's, Azure's, CloudFront's names).
std::string unsigned_url(std::string_view url);

/// Gets a file, or what is missing of it, and goes on by range requests where the connection breaks. Redirects are
/// followed, the proxies of the environment used (http_proxy, https_proxy, no_proxy). Only GET is used: that is what
/// signed URLs allow.
/// Params:   known, offset – what the sink has: the first `offset` bytes of that content. With all of it
///           (offset == known.size > 0) the server is asked whether it is unchanged; if so, the sink gets nothing
/// Returns:  the content that the sink has now, or that the server has where the sink wanted no bytes
/// Threads:  safe; a stop request ends it within a second
/// Throws:   c10::ValueError – the server refuses (status), redirects without end, does not say the file's size;
///           c10::Error – the last of the attempts failed. URL (public_url), status or reason, bytes so far
HttpFile http_get(const std::string& url, const HttpFile& known, uint64_t offset, HttpSink& sink,
                  const HttpOptions& options = {}, const std::stop_token& stop = {});

/// Gets the bytes [offset, offset + out.size()) of a file by a range request.
/// Params:   known – the content, as http_look says
///           out   – lies within it
/// Returns:  false – the server knows no ranges, or has another content now; `out` may hold anything then
/// Throws:   as http_get does
bool http_read(const std::string& url, const HttpFile& known, uint64_t offset, std::span<std::byte> out,
               const HttpOptions& options = {}, const std::stop_token& stop = {});

/// What the server has under `url`, by a request for its first byte. Throws as http_get does.
HttpFile http_look(const std::string& url, const HttpOptions& options = {}, const std::stop_token& stop = {});

}  // namespace bellows::io
