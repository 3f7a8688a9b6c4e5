#include "tests/export/onnx_reader.h"

#include <onnx/checker.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace bellows::testing {

namespace {

std::string read(const std::string& path, uint64_t offset, uint64_t length) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(length, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file.read(bytes.data(), static_cast<std::streamsize>(length))) throw std::runtime_error("cannot read " + path);
  return bytes;
}

OnnxFile::Value value_of(const onnx::ValueInfoProto& proto) {
  OnnxFile::Value value{.name = proto.name(), .element_type = proto.type().tensor_type().elem_type(), .shape = {}};
  for (const auto& dim : proto.type().tensor_type().shape().dim())
    value.shape.push_back(dim.has_dim_param() ? dim.dim_param() : std::to_string(dim.dim_value()));
  return value;
}

OnnxFile::Initializer initializer_of(const onnx::TensorProto& proto, const std::string& folder) {
  OnnxFile::Initializer result;
  result.element_type = proto.data_type();
  result.sizes.assign(proto.dims().begin(), proto.dims().end());
  result.external = proto.data_location() == onnx::TensorProto::EXTERNAL;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") result.location = entry.value();
    if (entry.key() == "offset") result.offset = std::stoull(entry.value());
    if (entry.key() == "length") result.length = std::stoull(entry.value());
  }
  result.bytes =
      result.external ? read(folder + "/" + result.location, result.offset, result.length) : proto.raw_data();
  return result;
}

}  // namespace

int OnnxFile::count(const std::string& op) const {
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [&](const Node& node) { return node.op == op; }));
}

OnnxFile read_onnx(const std::string& path) {
  onnx::checker::check_model(path);
  onnx::ModelProto model;
  std::ifstream stream(path, std::ios::binary);
  if (!model.ParseFromIstream(&stream)) throw std::runtime_error("cannot parse " + path);
  OnnxFile file;
  file.ir_version = model.ir_version();
  file.opset = model.opset_import(0).version();
  for (const auto& one : model.graph().input()) file.inputs.push_back(value_of(one));
  for (const auto& one : model.graph().output()) file.outputs.push_back(value_of(one));
  for (const auto& one : model.graph().node())
    file.nodes.push_back({one.op_type(),
                          one.name(),
                          {one.input().begin(), one.input().end()},
                          {one.output().begin(), one.output().end()}});
  const std::string folder = std::filesystem::path(path).parent_path().string();
  for (const auto& one : model.graph().initializer()) file.initializers[one.name()] = initializer_of(one, folder);
  return file;
}

}  // namespace bellows::testing
