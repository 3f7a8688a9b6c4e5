#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bellows::bench {

/// A blocking gRPC client with a connection of its own, for a model with one fp32 input `x` and one output.
class GrpcCaller {
 public:
  GrpcCaller(const std::string& address, const std::string& model, const std::vector<float>& values);

  /// Sends the request and returns the output. Throws c10::Error if the call fails.
  std::vector<float> infer() const { return infer_(); }
  /// Asks whether the server lives. It takes what gRPC takes without a model.
  void live() const { live_(); }

 private:
  std::function<std::vector<float>()> infer_{};
  std::function<void()> live_{};
};

}  // namespace bellows::bench
