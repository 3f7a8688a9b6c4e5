#include "bellows/graph/program/program_file.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/io/hash.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::graph {
namespace {

using Json = nlohmann::json;

constexpr int deepest_group = 8;

std::string exact_text(double value) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

double exact_number(const std::string& text) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(read.ec == std::errc() && read.ptr == text.data() + text.size(), "invalid number: ", text);
  return value;
}

Json json_of(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return {{"double", exact_text(value.toDouble())}};
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return {{"device", value.toDevice().str()}};
  if (value.isComplexDouble()) {
    const auto complex = value.toComplexDouble();
    return {{"complex", {exact_text(complex.real()), exact_text(complex.imag())}}};
  }
  TORCH_CHECK_VALUE(value.isList(), "save_program: expected numbers, text, devices, or lists of them, found ",
                    value.tagKind(), ".");
  Json items = Json::array();
  for (const c10::IValue& item : value.toListRef()) items.push_back(json_of(item));
  const char* const of = value.isIntList()      ? "int"
                         : value.isDoubleList() ? "double"
                         : value.isBoolList()   ? "bool"
                                                : "any";
  return {{"list", items}, {"of", of}};
}

c10::IValue list_of(const Json& json);

c10::IValue value_of(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_string()) return json.get<std::string>();
  if (json.contains("double")) return exact_number(json.at("double"));
  if (json.contains("device")) return c10::Device(json.at("device").get<std::string>());
  if (json.contains("complex"))
    return c10::complex<double>(exact_number(json.at("complex").at(0)), exact_number(json.at("complex").at(1)));
  return list_of(json);
}

template <class Item, class Get>
c10::IValue typed_list(const Json& items, const Get& get) {
  c10::List<Item> list;
  list.reserve(items.size());
  for (const Json& item : items) list.push_back(get(item));
  return list;
}

c10::IValue list_of(const Json& json) {
  const Json& items = json.at("list");
  const auto of = json.at("of").get<std::string>();
  if (of == "int") return typed_list<int64_t>(items, [](const Json& item) { return item.get<int64_t>(); });
  if (of == "double")
    return typed_list<double>(items, [](const Json& item) { return exact_number(item.at("double")); });
  if (of == "bool") return typed_list<bool>(items, [](const Json& item) { return item.get<bool>(); });
  c10::impl::GenericList list(c10::NumberType::get());  // for foreach operators
  list.reserve(items.size());
  for (const Json& item : items) list.push_back(value_of(item));
  return list;
}

Json json_of(const Geometry& one) {
  return {{"sizes", std::vector<int64_t>(one.sizes.begin(), one.sizes.end())},
          {"strides", std::vector<int64_t>(one.strides.begin(), one.strides.end())},
          {"offset", one.offset},
          {"dtype", c10::toString(c10::typeMetaToScalarType(one.dtype))},
          {"device", one.device.str()},
          {"keys", one.keys.raw_repr()},
          {"wrapped_number", one.wrapped_number}};
}

Geometry geometry_of(const Json& json) {
  const auto numbers = [&](const char* name) {
    const auto list = json.at(name).get<std::vector<int64_t>>();
    return Geometry::Numbers(list.begin(), list.end());
  };
  return {.sizes = numbers("sizes"),
          .strides = numbers("strides"),
          .offset = json.at("offset"),
          .dtype = c10::scalarTypeToTypeMeta(dtype_named(json.at("dtype"))),
          .device = c10::Device(json.at("device").get<std::string>()),
          .keys = c10::DispatchKeySet(c10::DispatchKeySet::RAW, json.at("keys").get<uint64_t>()),
          .wrapped_number = json.at("wrapped_number")};
}

Json json_of(const Program::State& state) {
  const DispatchState& one = state.dispatch_state;
  return {{"grad", one.grad},
          {"inference", one.inference},
          {"forward_grad", one.forward_grad},
          {"backward", one.backward},
          {"deterministic", one.deterministic},
          {"deterministic_warns", one.deterministic_warns},
          {"fill_uninitialized", one.fill_uninitialized},
          {"onednn", one.onednn},
          {"default_dtype", c10::toString(one.default_dtype)},
          {"autocast_cpu", c10::toString(one.autocast_cpu)},
          {"autocast_cuda", c10::toString(one.autocast_cuda)},
          {"included", one.included},
          {"excluded", one.excluded},
          {"float32_precision", state.float32_precision}};
}

Program::State state_of(const Json& json) {
  return {.dispatch_state = {.grad = json.at("grad"),
                             .inference = json.at("inference"),
                             .forward_grad = json.at("forward_grad"),
                             .backward = json.value("backward", false),
                             .deterministic = json.at("deterministic"),
                             .deterministic_warns = json.at("deterministic_warns"),
                             .fill_uninitialized = json.at("fill_uninitialized"),
                             .onednn = json.at("onednn"),
                             .default_dtype = dtype_named(json.at("default_dtype")),
                             .autocast_cpu = dtype_named(json.at("autocast_cpu")),
                             .autocast_cuda = dtype_named(json.at("autocast_cuda")),
                             .included = json.at("included"),
                             .excluded = json.at("excluded")},
          .float32_precision = json.at("float32_precision")};
}

Json json_of(const Operand& operand);
Json json_of(const Instruction::Argument& one);
Json json_of(const Instruction::Result& one);
Json json_of(const Instruction::Update& one);
Json json_of(const Instruction& one);
Json json_of(const Program& program);

template <class Items>
Json json_list(const Items& items) {
  Json result = Json::array();
  for (const auto& item : items) result.push_back(json_of(item));
  return result;
}

template <class Item, class Get>
std::vector<Item> list_from(const Json& json, const Get& get) {
  TORCH_CHECK_VALUE(json.is_array(), "expected a list, found ", json.type_name());
  std::vector<Item> result;
  result.reserve(json.size());
  for (const Json& item : json) result.push_back(get(item));
  return result;
}

Json json_of(const Operand& operand) {
  if (operand.value == no_value) return nullptr;
  return {{"value", operand.value}, {"geometry", json_of(operand.geometry)}};
}

Operand operand_of(const Json& json) {
  if (json.is_null()) return {};
  return {.value = json.at("value"), .geometry = geometry_of(json.at("geometry"))};
}

constexpr const char* kinds[] = {"tensor", "tensor_list", "optional_tensor_list", "number", "constant"};

Json json_of(const Instruction::Argument& one) {
  Json json{{"kind", kinds[static_cast<int>(one.kind)]}};
  if (one.is_tensors())
    json["operands"] = json_list(one.operands);
  else
    json["constant"] = json_of(one.constant);
  if (one.number >= 0) json["number"] = one.number;
  return json;
}

Instruction::Argument argument_of(const Json& json) {
  const auto name = json.at("kind").get<std::string>();
  const auto* const kind = std::find(std::begin(kinds), std::end(kinds), name);
  TORCH_CHECK_VALUE(kind != std::end(kinds), "an argument has an unknown kind: ", name);
  Instruction::Argument one{.kind = static_cast<OperatorFacts::Kind>(kind - std::begin(kinds)),
                            .number = json.value("number", -1)};
  if (one.is_tensors())
    one.operands = list_from<Operand>(json.at("operands"), operand_of);
  else
    one.constant = value_of(json.at("constant"));
  return one;
}

Json json_of(const Instruction::Result& one) {
  return {{"list", one.list}, {"operands", json_list(one.operands)}};
}

Instruction::Result result_of(const Json& json) {
  return {.list = json.at("list"), .operands = list_from<Operand>(json.at("operands"), operand_of)};
}

Json json_of(const Instruction::Update& one) {
  return {one.before, one.after};
}

Program program_of(const Json& json, int depth);

Json json_of(const Instruction& one) {
  TORCH_CHECK_VALUE(
      one.op || one.group,
      "save_program: expected operators and groups, found a kernel that does not replace an operator or a group: ",
      one.kernel ? one.kernel->name() : one.kind, ".");
  Json json{{"arguments", json_list(one.arguments)},
            {"results", json_list(one.results)},
            {"updates", json_list(one.updates)},
            {"kind", one.kind},
            {"state", one.state}};
  if (one.op) json["op"] = one.op->name;
  if (one.group) json["group"] = json_of(*one.group);
  return json;
}

const OperatorFacts* operator_of(const std::string& name) {
  const size_t dot = name.find('.');
  const auto found = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  TORCH_CHECK_VALUE(found, "this operator is not registered in this process: ", name,
                    ". Load the library that defines it.");
  return &operator_facts(*found);
}

Instruction instruction_of(const Json& json, int depth) {
  Instruction one{.kind = json.at("kind"),
                  .arguments = list_from<Instruction::Argument>(json.at("arguments"), argument_of),
                  .results = list_from<Instruction::Result>(json.at("results"), result_of),
                  .updates = list_from<Instruction::Update>(json.at("updates"),
                                                            [](const Json& update) {
                                                              return Instruction::Update{update.at(0), update.at(1)};
                                                            }),
                  .state = json.at("state")};
  if (json.contains("op")) one.op = operator_of(json.at("op"));
  if (json.contains("group")) one.group = std::make_shared<Program>(program_of(json.at("group"), depth + 1));
  return one;
}

Json json_of(const Program& program) {
  Json values = Json::array(), outputs = Json::array(), constants = Json::array();
  for (const auto& value : program.values)
    values.push_back({{"geometry", json_of(value.geometry)}, {"nbytes", value.nbytes}});
  for (const auto& output : program.outputs) outputs.push_back({output.value, output.input});
  for (const auto& constant : program.constants)
    constants.push_back({{"value", constant.value}, {"geometry", json_of(Geometry::of(constant.tensor))}});
  return {{"states", json_list(program.states)},
          {"values", values},
          {"inputs", program.inputs},
          {"numbers", json_list(program.numbers)},
          {"constants", constants},
          {"instructions", json_list(program.instructions)},
          {"outputs", outputs}};
}

Program program_of(const Json& json, int depth) {
  TORCH_CHECK_VALUE(depth <= deepest_group, "groups are nested more than ", deepest_group, " levels deep");
  Program program;
  program.states = list_from<Program::State>(json.at("states"), state_of);
  program.values = list_from<Program::ValueFacts>(json.at("values"), [](const Json& value) {
    return Program::ValueFacts{geometry_of(value.at("geometry")), value.at("nbytes")};
  });
  program.inputs = json.at("inputs").get<std::vector<ValueId>>();
  program.numbers = list_from<c10::IValue>(json.at("numbers"), value_of);
  program.constants = list_from<Program::Constant>(json.at("constants"), [](const Json& constant) {
    return Program::Constant{constant.at("value"), geometry_of(constant.at("geometry"))
                                                       .over(c10::Storage(c10::Storage::use_byte_size_t(), 0,
                                                                          c10::DataPtr(nullptr, c10::kCPU)))};
  });
  program.instructions =
      list_from<Instruction>(json.at("instructions"), [&](const Json& one) { return instruction_of(one, depth); });
  for (Instruction& one : program.instructions) {
    if (one.state >= 0 && one.state < static_cast<int>(program.states.size()))
      one.default_dtype = program.states[one.state].dispatch_state.default_dtype;
  }
  program.outputs = list_from<Program::Output>(json.at("outputs"), [](const Json& output) {
    return Program::Output{output.at(0), output.at(1)};
  });
  return program;
}

constexpr const char* format = "1";
constexpr const char* format_key = "bellows.program.format";
constexpr const char* libtorch_key = "bellows.program.libtorch";
constexpr const char* program_key = "bellows.program";
constexpr const char* checksum_key = "bellows.program.xxh3_128";

/// Returns: the programs whose constants are saved, in a fixed order: the program, then those of its groups
template <class AnyProgram, class Visit>
void for_each_constant(AnyProgram& program, const Visit& visit) {
  for (auto& constant : program.constants) visit(program, constant);
  for (auto& one : program.instructions) {
    if (one.group) for_each_constant(const_cast<Program&>(*one.group), visit);
  }
}

/// Returns: all bytes of a constant's buffer, because operands see it through their own geometries
at::Tensor buffer_of(const at::Tensor& constant) {
  const at::Tensor on_host = constant.device().is_cpu() ? constant : constant.cpu();
  at::Tensor bytes = at::empty({0}, at::kByte);
  bytes.set_(on_host.storage(), 0, {static_cast<int64_t>(on_host.storage().nbytes())}, {1});
  return bytes;
}

std::string checksum_of(const std::string& json, const NamedTensors& tensors) {
  std::string all = json;
  for (const auto& [name, tensor] : tensors)
    all.append(static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes()));
  return io::hash_hex("xxh3_128", std::as_bytes(std::span(all)));
}

std::string name_of(size_t constant) {
  std::string digits = std::to_string(constant);
  return "constant." + std::string(8 - std::min<size_t>(8, digits.size()), '0') + digits;
}

const std::string& metadata(const io::SafetensorsFile& file, const std::string& path, const char* key) {
  for (const auto& [name, text] : file.metadata()) {
    if (name == key) return text;
  }
  TORCH_CHECK_VALUE(false, "load_program: ", path, " is not a program file: its metadata has no ", key, ".");
}

}  // namespace

std::string program_to_json(const Program& program) {
  try {
    return json_of(program).dump();
  } catch (const Json::type_error& error) {
    TORCH_CHECK_VALUE(
        false,
        "save_program: a text argument or a name in the program is not UTF-8, so JSON cannot store it. Rename it. (",
        error.what(), ")");
  }
}

Program program_from_json(const std::string& text) {
  try {
    return program_of(Json::parse(text), 0);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

c10::ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtype != c10::ScalarType::Undefined && name == c10::toString(dtype)) return dtype;
  }
  TORCH_CHECK_VALUE(false, "unknown dtype: ", name);
}

void save_program(const std::string& path, const Program& program) {
  NamedTensors tensors;
  for_each_constant(program, [&](const auto&, const Program::Constant& constant) {
    tensors.emplace_back(name_of(tensors.size()), buffer_of(constant.tensor));
  });
  const std::string json = program_to_json(program);
  io::save_safetensors(path, tensors,
                       {.metadata = {{format_key, format},
                                     {libtorch_key, TORCH_VERSION},
                                     {program_key, json},
                                     {checksum_key, checksum_of(json, tensors)}}});
}

Program load_program(const std::string& path) {
  const io::SafetensorsFile file(path);
  const std::string& found = metadata(file, path, format_key);
  TORCH_CHECK_VALUE(found == format, "load_program: ", path, ": expected format ", format, ", found ", found, ".");
  const std::string& libtorch = metadata(file, path, libtorch_key);
  TORCH_CHECK_VALUE(libtorch == TORCH_VERSION, "load_program: ", path, ": expected libtorch ", TORCH_VERSION,
                    ", found ", libtorch, ", whose dispatch keys differ. Record the program again.");
  const std::string& json = metadata(file, path, program_key);
  NamedTensors tensors;
  for (const auto& entry : file.entries()) tensors.emplace_back(entry.name, file.tensor(entry));
  TORCH_CHECK_VALUE(checksum_of(json, tensors) == metadata(file, path, checksum_key), "load_program: ", path,
                    ": the checksum does not match. The file is damaged.");
  try {
    Program program = program_from_json(json);
    size_t next = 0;
    for_each_constant(program, [&](const Program& owner, Program::Constant& constant) {
      TORCH_CHECK_VALUE(next < tensors.size(), "a constant has no data");
      const at::Tensor& bytes = tensors[next++].second;
      const Geometry geometry = Geometry::of(constant.tensor);
      const size_t there = bytes.storage().nbytes();
      TORCH_CHECK_VALUE(geometry.reach() <= there && owner.values.at(constant.value).nbytes <= there,
                        "a constant is larger than its data");
      constant.tensor = geometry.over(bytes.storage());
    });
    program.check();
    return program;
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "load_program: ", path, ": ", user_message(error));
  }
}

}  // namespace bellows::graph
