#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace bellows::testing {

/// The parts of an ONNX file that tests look at, read with the protobuf library.
struct OnnxFile {
  struct Value {
    std::string name;
    int element_type = 0;
    std::vector<std::string> shape;  ///< numbers or names
  };
  struct Node {
    std::string op, name;
    std::vector<std::string> inputs, outputs;
  };
  struct Initializer {
    int element_type = 0;
    std::vector<int64_t> sizes;
    bool external = false;
    std::string location;
    uint64_t offset = 0, length = 0;
    std::string bytes;  ///< also of external data
  };

  int64_t ir_version = 0, opset = 0;
  std::vector<Value> inputs, outputs;
  std::vector<Node> nodes;
  std::map<std::string, Initializer> initializers;

  int count(const std::string& op) const;
};

/// Reads a file, and checks it with ONNX's checker (with the path, so that external data are checked, too).
OnnxFile read_onnx(const std::string& path);

}  // namespace bellows::testing
