#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows::serve {

/// The tokens with which clients authenticate (bearer tokens, RFC 6750).
class AccessTokens {
 public:
  /// Params: text  – one token per line, as `TOKEN` or `NAME:TOKEN`. Empty lines and lines that start with # are ignored.
  ///                 Tokens consist of letters, digits and -._~+/=
  ///         where – name of the file, for error messages. They contain no tokens
  /// Throws: c10::ValueError if a line is invalid, or if there is no token
  AccessTokens(std::string_view text, const std::string& where);

  /// Returns the name of the client, or "client N" for a token without a name in line N. Nothing if the token is unknown.
  /// Params: authorization – value of the header Authorization, such as "Bearer TOKEN"
  /// Cost:   depends on the length of `authorization` and on the number of tokens, but not on the bytes that differ
  std::optional<std::string> client(std::string_view authorization) const;

 private:
  struct Entry {
    std::string name{}, token{};
  };
  std::vector<Entry> entries_{};
};

/// A file of tokens that is read again when it changes.
/// Threads: thread-safe, but reload() not concurrently with itself
class TokenFile {
 public:
  /// Throws: c10::ValueError if the file cannot be read or is invalid
  explicit TokenFile(std::string path);

  /// Returns the name of the client, or "" without a token file.
  /// Throws: RequestError with status 401 if the token is missing or unknown
  std::string check(std::string_view authorization) const;
  /// Reads the file again if it has changed. If it cannot be used, an error is logged once, and the old tokens stay valid.
  void reload();

 private:
  const std::string path_;
  std::string text_;  ///< what was read last
  std::string last_problem_{};
  mutable Mutex mutex_;
  std::shared_ptr<const AccessTokens> tokens_ BELLOWS_GUARDED_BY(mutex_);
};

/// Returns whether other machines can connect to an IP address: false for loopback addresses, and for texts that are no IP
/// addresses, on which servers do not listen.
bool is_reachable(const std::string& address);

/// Throws: c10::ValueError if other machines can connect to the address, unless clients authenticate or `allowed` is true
void check_exposure(const std::string& address, bool tokens, bool allowed);

}  // namespace bellows::serve
