#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/serve/load/load_data.h"

/// The interface between the load generator and a protocol. There is one implementation for HTTP.
namespace bellows::serve {

/// The end of a request.
struct LoadAnswer {
  bool ok = false;
  bool connected = true;  ///< false: the connection failed, so another attempt should wait a moment
  std::string error{};    ///< HTTP status or reason, such as "503" or "connection closed"
  std::string message{};  ///< details of the error
};

/// A connection with at most one request in flight. It connects with the first request, and again after an error.
/// Threads: all functions and callbacks run on the thread of the io_context
class LoadConnection {
 public:
  virtual ~LoadConnection() = default;
  /// Sends a request. `done` is called later, never from this function, and not after abort().
  /// Params: request – index in the list of LoadTransport::prepare()
  virtual void send(size_t request, std::function<void(LoadAnswer)> done) = 0;
  /// Gives up the request in flight and disconnects.
  virtual void abort() = 0;
};

/// The server's counters for one model since it started, times in seconds.
struct ServerCounters {
  uint64_t requests = 0, rows = 0, executions = 0;
  double queue_s = 0, input_s = 0, compute_s = 0, output_s = 0;
};

class LoadTransport {
 public:
  virtual ~LoadTransport() = default;
  /// Name and version of the server.
  /// Throws: c10::ValueError if the server cannot be reached
  virtual std::string server() = 0;
  /// Throws: c10::ValueError if the server has no such model, or if it is not ready
  virtual LoadMetadata metadata() = 0;
  /// Serializes the requests that connections send.
  /// Returns: bytes of the first request
  virtual uint64_t prepare(const std::vector<LoadRequest>& requests) = 0;
  /// Sends a prepared request, and waits for the answer.
  /// Params: body – receives the body of the answer
  virtual LoadAnswer ask(size_t request, std::string& body) = 0;
  virtual std::unique_ptr<LoadConnection> connect(boost::asio::io_context& io) = 0;
  /// Reads the server's counters. `done` receives nothing if the server has none.
  virtual void counters(boost::asio::io_context& io, std::function<void(std::optional<ServerCounters>)> done) = 0;
};

/// Params: options – must exist as long as the transport
/// Throws: c10::ValueError if the URL is invalid, or if its host is unknown
std::unique_ptr<LoadTransport> http_transport(const LoadOptions& options);

}  // namespace bellows::serve
