#pragma once

#include <cstdint>
#include <string>

namespace bellows::serve {

struct GrpcOptions {
  std::string address = "127.0.0.1";               ///< an IP address
  uint16_t port = 8001;                            ///< 0: a free port
  int threads = 2;                                 ///< that read requests
  uint64_t max_message_bytes = uint64_t{1} << 28;  ///< larger requests fail with RESOURCE_EXHAUSTED; at most 2 GiB
  int max_streams = 1024;                          ///< calls of one connection at a time; further calls wait
  int max_pending_per_stream = 128;                ///< requests of one ModelStreamInfer call that wait for their answer
  /// Files in PEM format with which connections are encrypted; both or none. The server reads them again when they change.
  std::string tls_certificate{}, tls_key{};
  bool access_log = false;  ///< log one line for each request at the level info
};

}  // namespace bellows::serve
