// The sources of protobuf and ONNX see no header of libtorch, which brings its own version of both.
#include "bellows/export/onnx/file.h"

#include <onnx/checker.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <c10/util/Exception.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/system/file.h"

namespace bellows::onnx_export {

namespace {

constexpr int64_t ir_version = 8;                                 // of opset 17
constexpr uint64_t most_message_bytes = (uint64_t{1} << 31) - 1;  // protobuf's limit
constexpr size_t data_alignment = 4096;                           // so that runtimes can map the tensors

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void describe(const TensorData& data, onnx::TensorProto& proto) {
  proto.set_data_type(static_cast<int32_t>(data.type));
  for (const int64_t size : data.sizes) proto.add_dims(size);
}

void set_attribute(const Attribute& attribute, onnx::AttributeProto& proto) {
  using Proto = onnx::AttributeProto;
  proto.set_name(attribute.name);
  std::visit(
      [&](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, int64_t>) {
          proto.set_type(Proto::INT);
          proto.set_i(value);
        } else if constexpr (std::is_same_v<Value, double>) {
          proto.set_type(Proto::FLOAT);
          proto.set_f(static_cast<float>(value));
        } else if constexpr (std::is_same_v<Value, std::string>) {
          proto.set_type(Proto::STRING);
          proto.set_s(value);
        } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
          proto.set_type(Proto::INTS);
          for (const int64_t one : value) proto.add_ints(one);
        } else if constexpr (std::is_same_v<Value, std::vector<double>>) {
          proto.set_type(Proto::FLOATS);
          for (const double one : value) proto.add_floats(static_cast<float>(one));
        } else {
          proto.set_type(Proto::TENSOR);
          describe(value, *proto.mutable_t());
          proto.mutable_t()->set_raw_data(std::string(text_of(value.bytes)));
        }
      },
      attribute.value);
}

void set_value(const ValueInfo& info, onnx::ValueInfoProto& proto) {
  proto.set_name(info.name);
  auto* type = proto.mutable_type()->mutable_tensor_type();
  type->set_elem_type(static_cast<int32_t>(info.type));
  auto* shape = type->mutable_shape();  // a scalar has a shape without dims
  for (const AxisSize& axis : info.shape) {
    auto* dim = shape->add_dim();
    if (!axis.name.empty())
      dim->set_dim_param(axis.name);
    else if (axis.size >= 0)
      dim->set_dim_value(axis.size);
  }
}

void set_node(const Node& node, onnx::NodeProto& proto) {
  proto.set_op_type(node.op);
  proto.set_name(node.name);
  for (const std::string& input : node.inputs) proto.add_input(input);
  for (const std::string& output : node.outputs) proto.add_output(output);
  for (const Attribute& attribute : node.attributes) set_attribute(attribute, *proto.add_attribute());
}

/// Returns the model without initializers.
onnx::ModelProto model_of(const Graph& graph, const FileOptions& options) {
  onnx::ModelProto model;
  model.set_ir_version(ir_version);
  model.set_producer_name("bellows");
  model.set_producer_version(options.producer_version);
  model.add_opset_import()->set_version(options.opset);
  for (const auto& [key, value] : options.metadata) {
    auto* entry = model.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  }
  onnx::GraphProto& proto = *model.mutable_graph();
  proto.set_name(graph.name);
  for (const ValueInfo& input : graph.inputs) set_value(input, *proto.add_input());
  for (const ValueInfo& output : graph.outputs) set_value(output, *proto.add_output());
  for (const Node& node : graph.nodes) set_node(node, *proto.add_node());
  return model;
}

void add_in_file(const Initializer& initializer, onnx::GraphProto& graph) {
  onnx::TensorProto& proto = *graph.add_initializer();
  proto.set_name(initializer.name);
  describe(initializer.data, proto);
  proto.set_raw_data(std::string(text_of(initializer.data.bytes)));
}

void add_external(const Initializer& initializer, const std::string& file, uint64_t offset, onnx::GraphProto& graph) {
  onnx::TensorProto& proto = *graph.add_initializer();
  proto.set_name(initializer.name);
  describe(initializer.data, proto);
  proto.set_data_location(onnx::TensorProto::EXTERNAL);
  const auto set = [&](const char* key, const std::string& value) {
    auto* entry = proto.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  set("location", file);
  set("offset", std::to_string(offset));
  set("length", std::to_string(initializer.data.bytes.size()));
}

/// Checks a model in which large initializers are inputs, so that their data need not be copied.
void check(const Graph& graph, const FileOptions& options) {
  constexpr size_t largest_read = 4096;  // shape inference reads constants such as new shapes
  onnx::ModelProto model = model_of(graph, options);
  for (const Initializer& one : graph.initializers) {
    if (one.data.bytes.size() <= largest_read) {
      add_in_file(one, *model.mutable_graph());
      continue;
    }
    ValueInfo info{.name = one.name, .type = one.data.type, .shape = {}};
    for (const int64_t size : one.data.sizes) info.shape.push_back({.size = size, .name = {}});
    set_value(info, *model.mutable_graph()->add_input());
  }
  try {
    onnx::checker::check_model(model);
    onnx::shape_inference::InferShapes(
        model, onnx::OpSchemaRegistry::Instance(),
        onnx::ShapeInferenceOptions{/*check_type=*/true, /*error_mode=*/1, /*data_prop=*/true});
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "export_onnx: the checker of ONNX rejects the graph: ", error.what(),
                      "\nAn operator was mapped incorrectly. Please report the model or function.");
  }
}

void write_message(const onnx::ModelProto& model, AtomicFile& file, const std::string& path) {
  const size_t size = model.ByteSizeLong();
  TORCH_CHECK_VALUE(size <= most_message_bytes, "export_onnx: ", path, " would have ", size,
                    " bytes, but a file of protobuf has at most 2 GB. Lower `external_data_above`, so that weights are "
                    "written to a second file.");
  std::string bytes;
  TORCH_CHECK(model.SerializeToString(&bytes), "export_onnx: protobuf could not serialize the model for ", path, ".");
  file.write(bytes);
}

}  // namespace

int64_t newest_opset() {
  return 17;
}

WrittenFile write_onnx(const Graph& graph, const std::string& path, const FileOptions& options) {
  check(graph, options);
  uint64_t total = 0;
  for (const Initializer& one : graph.initializers) total += one.data.bytes.size();
  const bool external = total > options.external_data_above;
  onnx::ModelProto model = model_of(graph, options);
  WrittenFile written;
  AtomicFile file(path);
  std::unique_ptr<AtomicFile> data;
  if (external) {
    written.data_file = path + ".data";
    data = std::make_unique<AtomicFile>(written.data_file);
  }
  const std::string data_name = std::filesystem::path(path).filename().string() + ".data";
  for (const Initializer& one : graph.initializers) {
    if (!external || one.data.bytes.size() < options.smallest_external) {
      add_in_file(one, *model.mutable_graph());
      continue;
    }
    const std::string padding((data_alignment - data->offset() % data_alignment) % data_alignment, '\0');
    data->write(padding);
    add_external(one, data_name, data->offset(), *model.mutable_graph());
    data->write(one.data.bytes);
  }
  write_message(model, file, path);
  written.bytes = file.offset();
  if (data) {
    written.data_bytes = data->offset();
    data->commit();
  }
  file.commit();
  return written;
}

}  // namespace bellows::onnx_export
