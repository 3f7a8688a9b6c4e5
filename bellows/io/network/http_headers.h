#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "bellows/io/network/http.h"

namespace bellows::io {

/// What the headers of an answer say of a file.
struct HttpHeaders {
  HttpFile file;                               ///< its size is not known from one line
  std::optional<uint64_t> length;              ///< Content-Length
  std::optional<uint64_t> range_begin, total;  ///< of Content-Range: "bytes 5-9/10", or "bytes */10"

  /// Takes one line. A status line forgets all before it: another answer begins, behind a redirect.
  void take(std::string_view line);
};

}  // namespace bellows::io
