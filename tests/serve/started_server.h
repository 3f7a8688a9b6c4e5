#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bellows/serve/server.h"
#include "tests/serve/raw_client.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

/// A server with the models "identity", "gated" and "damaged" of test_models.h.
class StartedServer {
 public:
  /// Params: change – may change the options and the files of the folder before the server starts
  explicit StartedServer(const std::function<void(ServerOptions&, const TestFolder&)>& change = {}) {
    folder_.write("models/identity/1/model.test", "identity");
    folder_.write("models/gated/1/model.test", "gated");
    folder_.write("models/damaged/1/model.test", "?");
    ServerOptions options{.repository = path("models")};
    options.http.port = 0;
    if (change) change(options, folder_);
    server_ = std::make_unique<Server>(options, test_loader());
    server_->wait_until_loaded();
  }

  uint16_t port() const { return server_->port(); }
  Server& server() { return *server_; }
  const TestFolder& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  RawResponse ask(const std::string& request) const {
    RawClient client(port());
    client.send(request);
    return client.receive();
  }

 private:
  TestFolder folder_;
  std::unique_ptr<Server> server_;
};

/// A request to a model with one input of four values.
inline std::string infer(const std::string& model, const std::string& headers = "", const std::string& id = "") {
  return post("/v2/models/" + model + "/infer",
              (id.empty() ? "{" : R"({"id":")" + id + R"(",)") +
                  R"("inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]})",
              headers);
}

}  // namespace bellows::serve
