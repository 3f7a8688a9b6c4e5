#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/io/tensors/safetensors_header.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using checkpoint::SavedTensor;
using nlohmann::ordered_json;

/// The newest checkpoint, if `path` is a run folder.
std::string checkpoint_at(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) || std::filesystem::exists(path + "/index.json", error)) return path;
  const std::vector<std::string> all = checkpoint::list_checkpoints(path);
  return all.empty() ? path : all.back();
}

uint64_t bytes_of(const SavedTensor& tensor) {
  uint64_t bytes = 0;
  for (const checkpoint::SavedPiece& piece : tensor.pieces)
    bytes += static_cast<uint64_t>(piece.spec.numel()) * static_cast<uint64_t>(io::safetensors_bits(tensor.dtype)) / 8;
  return bytes;
}

ordered_json info_json(const checkpoint::SavedCheckpoint& saved, bool verified) {
  const checkpoint::ShardedIndex& index = saved.index();
  ordered_json json = {
      {"path", saved.path()},       {"step", index.step},   {"epoch", index.epoch}, {"batch", index.batch},
      {"consumed", index.consumed}, {"ranks", index.ranks}, {"verified", verified}, {"tensors", ordered_json::array()}};
  for (const SavedTensor& tensor : index.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", tensor.dtype},
                               {"sizes", tensor.sizes},
                               {"bytes", bytes_of(tensor)},
                               {"pieces", tensor.pieces.size()}});
  }
  return json;
}

std::string info_text(const checkpoint::SavedCheckpoint& saved, bool verified) {
  struct Section {
    size_t tensors = 0;
    uint64_t bytes = 0;
  };
  const checkpoint::ShardedIndex& index = saved.index();
  std::map<std::string, Section> sections;
  for (const SavedTensor& tensor : index.tensors) {
    Section& section = sections[tensor.name.substr(0, tensor.name.find('/'))];
    ++section.tensors;
    section.bytes += bytes_of(tensor);
  }
  std::string text = c10::str(saved.path(), "\nstep ", index.step, ", epoch ", index.epoch, ", batch ", index.batch,
                              ", written by ", index.ranks, index.ranks == 1 ? " rank\n" : " ranks\n");
  for (const auto& [name, section] : sections)
    text += pad_right(name, 10) + pad_left(std::to_string(section.tensors), 7) + " tensors" +
            pad_left(std::to_string(section.bytes), 16) + " bytes\n";
  return text + (verified ? "All checksums match.\n" : "");
}

}  // namespace

int run_checkpoint_info(const CheckpointArguments& arguments) {
  check_output_file(arguments.json);
  const checkpoint::SavedCheckpoint saved(checkpoint_at(arguments.path));
  if (arguments.verify) saved.verify();
  if (arguments.json != "-") Terminal().print(info_text(saved, arguments.verify));
  write_json(arguments.json, json_text(info_json(saved, arguments.verify)));
  return exit_done;
}

int run_checkpoint_export(const CheckpointArguments& arguments) {
  check_output_file(arguments.json);
  const std::string path = checkpoint_at(arguments.path);
  const std::vector<std::string> files = checkpoint::export_safetensors(path, arguments.out, arguments.max_file_size);
  if (arguments.json != "-")
    Terminal().print(c10::str("Exported the weights of ", path, " to ", c10::Join(", ", files), "\n"));
  write_json(arguments.json, json_text({{"path", path}, {"file", arguments.out}, {"files", files}}));
  return exit_done;
}

}  // namespace bellows::cli
