#include "bellows/graph/program/program_file.h"

#include <ATen/ops/empty.h>
#include <torch/version.h>

#include "bellows/core/error.h"
#include "bellows/graph/program/program_json.h"
#include "bellows/io/hash.h"
#include "bellows/io/tensors/safetensors.h"

namespace bellows::graph {
namespace {

constexpr const char* format = "1";
constexpr const char* format_key = "bellows.program.format";
constexpr const char* libtorch_key = "bellows.program.libtorch";
constexpr const char* program_key = "bellows.program";
constexpr const char* checksum_key = "bellows.program.xxh3_128";

/// The programs whose constants are kept, in one order: a program, and those of its groups.
template <class AnyProgram, class Visit>
void for_each_constant(AnyProgram& program, const Visit& visit) {
  for (auto& constant : program.constants) visit(program, constant);
  for (auto& one : program.instructions) {
    if (one.group) for_each_constant(const_cast<Program&>(*one.group), visit);
  }
}

/// All bytes of a constant's buffer: operands see it through geometries of their own.
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
  TORCH_CHECK_VALUE(false, "load_program: ", path, " is no program: its metadata has no ", key, ".");
}

}  // namespace

void save_program(const std::string& path, const Program& program) {
  NamedTensors tensors;
  for_each_constant(program, [&](const auto&, const Program::Constant& constant) {
    tensors.emplace_back(name_of(tensors.size()), buffer_of(constant.tensor));
  });
  const std::string json = detail::program_to_json(program);
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
                    ", found ", libtorch, ", whose dispatch keys are other ones. Record the program again.");
  const std::string& json = metadata(file, path, program_key);
  NamedTensors tensors;
  for (const auto& entry : file.entries()) tensors.emplace_back(entry.name, file.tensor(entry));
  TORCH_CHECK_VALUE(checksum_of(json, tensors) == metadata(file, path, checksum_key), "load_program: ", path,
                    ": the checksum differs, the file is damaged.");
  try {
    Program program = detail::program_from_json(json);
    size_t next = 0;
    for_each_constant(program, [&](const Program& owner, Program::Constant& constant) {
      TORCH_CHECK_VALUE(next < tensors.size(), "a constant without data");
      const at::Tensor& bytes = tensors[next++].second;
      const Geometry geometry = Geometry::of(constant.tensor);
      const size_t there = bytes.storage().nbytes();
      TORCH_CHECK_VALUE(geometry.reach() <= there && owner.values.at(constant.value).nbytes <= there,
                        "a constant larger than its data");
      constant.tensor = geometry.over(bytes.storage());
    });
    program.check();
    return program;
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "load_program: ", path, ": ", user_message(error));
  }
}

}  // namespace bellows::graph
