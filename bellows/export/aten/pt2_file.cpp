// Runs a written `.pt2` file, to compare it with the model.
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "bellows/export/aten/pt2.h"
#include "bellows/export/aten/pt2_json_impl.h"
#include "bellows/io/archives/zip.h"
#include "bellows/system/file.h"

namespace bellows::aten_export {

namespace {

using Inputs = std::vector<at::Tensor>;

/// Finds the value whose number in the schema is `number`.
template <class Enumeration>
Enumeration value_of(int number, std::initializer_list<Enumeration> values) {
  for (const Enumeration one : values) {
    if (pt2_number(one) == number) return one;
  }
  TORCH_CHECK_VALUE(false, "export_pt2: the file has an unknown dtype or memory format ", number, ".");
}

c10::ScalarType dtype_of(const Json& number) {
  return value_of(number.get<int>(),
                  {c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16, c10::kLong, c10::kInt, c10::kShort,
                   c10::kChar, c10::kByte, c10::kBool, c10::kComplexHalf, c10::kComplexFloat, c10::kComplexDouble,
                   c10::kUInt16, c10::kFloat8_e4m3fn, c10::kFloat8_e5m2});
}

double float_of(const Json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

std::vector<int64_t> integers_of(const Json& list) {
  std::vector<int64_t> result;
  for (const Json& one : list) result.push_back(one.at("as_int").get<int64_t>());
  return result;
}

class Pt2File {
 public:
  explicit Pt2File(const std::string& path) : file_(path), zip_(file_.bytes(), path) {
    TORCH_CHECK_VALUE(!zip_.entries().empty(), "export_pt2: the archive ", path, " is empty.");
    const std::string& first = zip_.entries()[0].name;
    root_ = first.substr(0, first.find('/') + 1);
    program_ = Json::parse(text("models/model.json"));
    load("data/weights/", "model_weights_config.json");
    load("data/constants/", "model_constants_config.json");
  }

  Inputs run(const Inputs& inputs) const {
    const c10::NoGradGuard no_gradients;
    Values values;
    const Json& module = program_.at("graph_module");
    size_t next = 0;
    for (const Json& spec : module.at("signature").at("input_specs")) {
      const std::string& kind = spec.begin().key();
      const Json& one = spec.begin().value();
      if (kind == "user_input")
        values[one.at("arg").at("as_tensor").at("name")] = inputs.at(next++);
      else
        values[one.at("arg").at("name")] = tensors_.at(one.at(kind + "_name"));
    }
    for (const Json& node : module.at("graph").at("nodes")) run_node(node, values);
    Inputs outputs;
    for (const Json& output : module.at("graph").at("outputs"))
      outputs.push_back(values.at(output.at("as_tensor").at("name")).toTensor());
    return outputs;
  }

 private:
  using Values = std::unordered_map<std::string, c10::IValue>;

  std::string text(const std::string& name) const {
    const io::ZipEntry* entry = zip_.find(root_ + name);
    TORCH_CHECK_VALUE(entry, "export_pt2: the archive ", file_.path(), " has no file ", root_, name, ".");
    zip_.verify(*entry);
    return {reinterpret_cast<const char*>(entry->data.data()), entry->data.size()};
  }

  void load(const std::string& folder, const std::string& config) {
    const Json parsed = Json::parse(text(folder + config));
    for (const auto& [name, one] : parsed.at("config").items()) {
      const auto bytes = std::make_shared<std::string>(text(folder + one.at("path_name").get<std::string>()));
      const Json& meta = one.at("tensor_meta");
      tensors_[name] = at::from_blob(
          bytes->data(), integers_of(meta.at("sizes")), integers_of(meta.at("strides")), [bytes](void*) {},
          at::TensorOptions(dtype_of(meta.at("dtype"))));
    }
  }

  static c10::IValue tensors_of(const Json& list, const Values& values) {
    c10::List<at::Tensor> result;
    for (const Json& one : list) result.push_back(values.at(one.at("name")).toTensor());
    return result;
  }
  static c10::IValue optional_tensors_of(const Json& list, const Values& values) {
    c10::List<std::optional<at::Tensor>> result;
    for (const Json& one : list)
      result.push_back(one.contains("as_none") ? std::nullopt
                                               : std::optional(values.at(one.at("as_tensor").at("name")).toTensor()));
    return result;
  }
  static c10::IValue sizes_of(const Json& list, const Values& values) {
    std::vector<int64_t> result;
    for (const Json& one : list)
      result.push_back(one.contains("as_int") ? one.at("as_int").get<int64_t>() : values.at(one.at("as_name")).toInt());
    return result;
  }

  static c10::IValue argument(const Json& one_of, const Values& values) {
    const std::string& kind = one_of.begin().key();
    const Json& value = one_of.begin().value();
    if (kind == "as_tensor") return values.at(value.at("name"));
    if (kind == "as_tensors") return tensors_of(value, values);
    if (kind == "as_optional_tensors") return optional_tensors_of(value, values);
    if (kind == "as_none") return {};
    if (kind == "as_sym_int") return values.at(value.at("as_name"));
    if (kind == "as_sym_ints") return sizes_of(value, values);
    if (kind == "as_int") return value.get<int64_t>();
    if (kind == "as_ints") return value.get<std::vector<int64_t>>();
    if (kind == "as_float") return float_of(value);
    if (kind == "as_floats") return value.get<std::vector<double>>();
    if (kind == "as_bool") return value.get<bool>();
    if (kind == "as_bools") return bools_of(value);
    if (kind == "as_string") return value.get<std::string>();
    if (kind == "as_scalar_type") return static_cast<int64_t>(dtype_of(value));
    if (kind == "as_layout") return static_cast<int64_t>(c10::kStrided);
    if (kind == "as_device") return c10::Device(value.at("type").get<std::string>());
    TORCH_CHECK_VALUE(kind == "as_memory_format", "export_pt2: the file has an argument of the unknown kind ", kind,
                      ".");
    using Format = c10::MemoryFormat;
    return static_cast<int64_t>(value_of(
        value.get<int>(), {Format::Contiguous, Format::ChannelsLast, Format::ChannelsLast3d, Format::Preserve}));
  }

  static c10::IValue bools_of(const Json& list) {
    c10::List<bool> result;
    for (const Json& one : list) result.push_back(one.get<bool>());
    return result;
  }

  static int64_t arithmetic(const std::string& name, int64_t a, int64_t b) {
    if (name == "_operator.add") return a + b;
    if (name == "_operator.mul") return a * b;
    TORCH_CHECK_VALUE(name == "_operator.floordiv", "export_pt2: the file has the unknown function ", name, ".");
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  }

  static void run_node(const Json& node, Values& values) {
    const std::string target = node.at("target");
    const std::string prefix = "torch.ops.aten.";
    if (!target.starts_with(prefix)) {
      const Json& inputs = node.at("inputs");
      values[node.at("outputs").at(0).at("as_sym_int").at("as_name")] = arithmetic(
          target, argument(inputs.at(0).at("arg"), values).toInt(), argument(inputs.at(1).at("arg"), values).toInt());
      return;
    }
    const size_t dot = target.find('.', prefix.size());
    const std::string overload = target.substr(dot + 1);
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        ("aten::" + target.substr(prefix.size(), dot - prefix.size())).c_str(),
        overload == "default" ? "" : overload.c_str());
    std::map<std::string, const Json*> given;
    for (const Json& input : node.at("inputs")) given[input.at("name")] = &input.at("arg");
    torch::jit::Stack stack;
    for (const c10::Argument& formal : op.schema().arguments()) {
      const auto found = given.find(formal.name());
      stack.push_back(found == given.end() ? formal.default_value().value() : argument(*found->second, values));
    }
    op.callBoxed(stack);
    define(node.at("outputs"), stack, values);
  }

  static void define(const Json& outputs, const torch::jit::Stack& results, Values& values) {
    for (size_t i = 0; i < results.size(); ++i) {
      const Json& output = outputs.at(i);
      if (output.contains("as_tensor")) values[output.at("as_tensor").at("name")] = results[i];
      if (output.contains("as_sym_int")) values[output.at("as_sym_int").at("as_name")] = results[i];
      if (!output.contains("as_tensors")) continue;
      const Inputs list = results[i].toTensorVector();
      for (size_t k = 0; k < list.size(); ++k) values[output.at("as_tensors").at(k).at("name")] = list[k];
    }
  }

  const MappedFile file_;
  const io::ZipReader zip_;
  std::string root_;
  Json program_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace

std::function<Inputs(const Inputs&)> load_pt2(const std::string& path) {
  const auto file = std::make_shared<const Pt2File>(path);
  return [file](const Inputs& inputs) { return file->run(inputs); };
}

}  // namespace bellows::aten_export
