#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace bellows::onnx_export {

/// Element types, with the numbers of ONNX's TensorProto.DataType.
enum class ElementType : int32_t {
  undefined = 0,
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  bfloat16 = 16,
};

/// Returns the bytes of one element.
size_t bytes_of(ElementType type);

/// A constant tensor.
struct TensorData {
  ElementType type = ElementType::undefined;
  std::vector<int64_t> sizes{};
  std::shared_ptr<const void> owner{};  ///< keeps `bytes` valid
  std::span<const std::byte> bytes{};   ///< row-major, little-endian
};

using AttributeValue =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, TensorData>;

/// An attribute with a number of type int64_t is written as INT, and one of type double as FLOAT.
struct Attribute {
  std::string name{};
  AttributeValue value{};
};

struct Node {
  std::string op{};
  std::string name{};
  std::vector<std::string> inputs{};  ///< an empty name omits an optional input
  std::vector<std::string> outputs{};
  std::vector<Attribute> attributes{};
};

struct Initializer {
  std::string name{};
  TensorData data{};
};

/// The size of an axis: a number, or a name if it is not known in advance.
struct AxisSize {
  int64_t size = -1;
  std::string name{};
};

/// An input or output of the graph.
struct ValueInfo {
  std::string name{};
  ElementType type = ElementType::undefined;
  std::vector<AxisSize> shape{};
};

/// An ONNX graph in memory. Nodes are in a valid order.
struct Graph {
  std::string name{};
  std::vector<Node> nodes{};
  std::vector<Initializer> initializers{};
  std::vector<ValueInfo> inputs{}, outputs{};
};

/// Builds a graph. A node that computes the same as an earlier one is not added again.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name) { graph_.name = std::move(name); }

  /// Reserves a name, so that no other value gets it.
  /// Returns: `name`, or the name with a number if it is already used
  std::string reserve(const std::string& name);
  /// Nodes are named after this path, such as "layer1.0.conv1", until the next call.
  void set_scope(std::string scope) { scope_ = std::move(scope); }

  /// Adds a node.
  /// Params:  outputs – number of outputs
  /// Returns: the names of the outputs
  std::vector<std::string> add(const std::string& op, std::vector<std::string> inputs,
                               std::vector<Attribute> attributes, size_t outputs);
  /// Adds a node with one output.
  std::string node(const std::string& op, std::vector<std::string> inputs, std::vector<Attribute> attributes = {});

  /// Returns the operator of the node that computes a value, or an empty string.
  std::string operator_of(const std::string& value) const;

  void add_input(ValueInfo info) { graph_.inputs.push_back(std::move(info)); }
  /// Adds an output whose value is computed under another name.
  void add_output(ValueInfo info, const std::string& value);
  /// Adds a named constant, such as a weight.
  std::string initializer(const std::string& name, TensorData data);
  /// Adds an unnamed constant, or returns an equal one.
  std::string constant(ElementType type, std::vector<int64_t> sizes, const std::string& bytes);
  std::string integers(const std::vector<int64_t>& values);
  std::string integer(int64_t value);

  /// Returns the graph without nodes and constants that no output needs.
  Graph finish() &&;

 private:
  Graph graph_;
  std::string scope_;
  std::map<std::string, int> names_;  ///< used names, and the number of the last one that was derived from them
  std::map<std::string, std::vector<std::string>> known_;  ///< outputs by the text of a node
  std::map<std::string, std::string> constants_;
};

}  // namespace bellows::onnx_export
