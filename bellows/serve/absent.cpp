// Takes the place of the server in builds without its libraries.
#include <c10/util/Exception.h>

#include "bellows/serve/load/load.h"
#include "bellows/serve/server.h"

namespace bellows::serve {

class Server::Impl {};

std::string Server::missing() {
  return "Bellows was built without Boost, simdjson or protobuf. Install libboost-dev, libsimdjson-dev, "
         "libprotobuf-dev and "
         "protobuf-compiler, and build Bellows again.";
}

Server::Server(ServerOptions, ModelLoader) {  // NOLINT(performance-unnecessary-value-param): as in server.h
  TORCH_CHECK_NOT_IMPLEMENTED(false, missing());
}
Server::~Server() = default;

std::string Server::missing_grpc() {
  return missing();
}

uint16_t Server::port() const {
  return 0;
}
uint16_t Server::grpc_port() const {
  return 0;
}
void Server::wait_until_loaded() {}
void Server::reload_files() {}
bool Server::drain(std::chrono::milliseconds) {
  return true;
}

LoadReport measure_load(const LoadOptions&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, Server::missing());
}

}  // namespace bellows::serve
