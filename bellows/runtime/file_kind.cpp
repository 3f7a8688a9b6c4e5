#include "bellows/runtime/file_kind.h"

#include <c10/util/Exception.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "bellows/io/archives/zip.h"
#include "bellows/runtime/backend.h"
#include "bellows/system/file.h"

namespace bellows::runtime {

namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

FileKind kind_of_archive(const std::string& path) {
  bool program = false, weights = false, package = false, exported = false;
  try {
    const MappedFile file(path);
    const io::ZipReader zip(file.bytes(), path);
    for (const io::ZipEntry& entry : zip.entries()) {
      package |= has(entry.name, "/data/aotinductor/");
      exported |= has(entry.name, "/models/") && entry.name.ends_with(".json");
      program |= entry.name.ends_with("/constants.pkl");
      weights |= entry.name.ends_with("/data.pkl");
    }
  } catch (const c10::Error&) {  // truncated: load() reports the damage
    return path.ends_with(".pt2") ? FileKind::aotinductor : FileKind::torchscript;
  }
  if (package) return FileKind::aotinductor;
  if (program) return FileKind::torchscript;
  if (exported) return FileKind::exported_program;
  return weights ? FileKind::torch_weights : FileKind::unknown;
}

}  // namespace

FileKind file_kind(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return FileKind::missing;
  std::array<char, 64> bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  const std::string_view head(bytes.data(), static_cast<size_t>(file.gcount()));
  if (head.starts_with("PK\x03\x04")) return kind_of_archive(path);
  if (head.starts_with("BLWPROGR")) return FileKind::program;
  if (path.ends_with(".onnx")) return FileKind::onnx;
  if (path.ends_with(".pt2")) return FileKind::aotinductor;
  if (path.ends_with(".xml") || head.starts_with("<net ")) return FileKind::openvino;
  if (head.starts_with("<?xml") && has(head, "<net ")) return FileKind::openvino;
  // An ONNX model starts with the field ir_version, and another field of ModelProto follows.
  const bool version = head.size() > 2 && head[0] == 0x08 && head[1] > 0 && head[1] < 32;
  return version && has("\x12\x1a\x22\x28\x32\x3a\x42", head.substr(2, 1)) ? FileKind::onnx : FileKind::unknown;
}

std::string describe(FileKind kind) {
  switch (kind) {
    case FileKind::missing:
      return "no file";
    case FileKind::torchscript:
      return "a TorchScript program";
    case FileKind::torch_weights:
      return "weights that torch.save wrote";
    case FileKind::aotinductor:
      return "a package of AOTInductor";
    case FileKind::exported_program:
      return "a program of torch.export";
    case FileKind::program:
      return "a compiled program of Bellows";
    case FileKind::onnx:
      return "an ONNX model";
    case FileKind::openvino:
      return "an OpenVINO model";
    case FileKind::unknown:
      break;
  }
  return "a file of an unknown kind";
}

void check_kind(const std::string& path, const std::string& backend, bool accepted) {
  if (accepted) return;
  const FileKind kind = file_kind(path);
  TORCH_CHECK_VALUE(kind != FileKind::missing, backend, " cannot load ", path, ": there is no such file.");
  std::string others;
  for (const InferenceBackend* one : backends()) {
    if (one->accepts(path)) others += (others.empty() ? "" : ", ") + one->name();
  }
  TORCH_CHECK_VALUE(false, backend, " cannot load ", path, ", which is ", describe(kind), ". ",
                    others.empty() ? "No back end reads such files." : "Back ends for this file: " + others + ".");
}

}  // namespace bellows::runtime
