#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace bellows::serve {

struct RawResponse {
  int status = 0;                                ///< 0 if the connection ended before a complete response
  std::map<std::string, std::string> headers{};  ///< names in lower case
  std::string body{};
};

/// Removes the first response from the bytes of a connection. Returns nothing if it is not complete.
std::optional<RawResponse> take_response(std::string& bytes);

/// A TCP connection to the server on this machine.
class RawClient {
 public:
  explicit RawClient(uint16_t port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// Returns false if the server has closed the connection.
  bool send(std::string_view bytes);
  /// Reads the next response. Waits at most 20 seconds.
  RawResponse receive();
  /// Returns whether the server closes the connection within 20 seconds.
  bool closed_by_server();
  /// Closes only the sending side.
  void half_close();
  /// Closes the connection with a reset.
  void reset();

 private:
  bool read_more();

  int socket_ = -1;
  std::string buffer_{};
};

/// Returns the text of a request with a body.
std::string post(const std::string& target, std::string_view body, const std::string& headers = "");
std::string get(const std::string& target, const std::string& headers = "");

}  // namespace bellows::serve
