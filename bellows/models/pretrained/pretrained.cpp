#include "bellows/models/pretrained/pretrained.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/io/network/hub.h"
#include "bellows/io/tables/json_impl.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/system/file.h"

namespace bellows::models {

namespace {

using PretrainedJson = nlohmann::json;

constexpr std::string_view index_suffix = ".index.json";
constexpr std::array<std::string_view, 4> usual_files = {"model.safetensors", "model.safetensors.index.json",
                                                         "pytorch_model.bin", "pytorch_model.bin.index.json"};

/// A local copy of a path or an address. The copy of an address is not evicted while this object exists.
struct LocalCopy {
  io::RemoteFile remote;
  std::string path;
};

LocalCopy local_copy(const std::string& path_or_address) {
  if (!io::is_remote_address(path_or_address)) return {{}, path_or_address};
  io::RemoteFile remote = io::fetch_file(path_or_address);
  std::string path = remote.path();
  return {std::move(remote), std::move(path)};
}

std::string without_checksum(const std::string& address) {
  return address.substr(0, address.find('#'));
}

bool is_index(const std::string& path_or_address) {
  return without_checksum(path_or_address).ends_with(index_suffix);
}

/// Another file in the folder of a path, an address or a URL.
std::string sibling(const std::string& path_or_address, const std::string& name) {
  std::string path = path_or_address;
  if (io::is_remote_address(path)) path.resize(std::min(path.find_first_of("?#"), path.size()));
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
}

/// The tensors of one file of an index.
struct WeightShard {
  std::string file;
  std::set<std::string> names;
};

std::vector<WeightShard> shards_of(const std::string& index, const std::string& text) {
  const PretrainedJson document = io::parse_shallow_json(text, "index " + index);
  const bool is_map = document.is_object() && document.contains("weight_map") && document["weight_map"].is_object();
  TORCH_CHECK_VALUE(is_map, "index ", index,
                    ": expected a JSON object with an object \"weight_map\", which names the "
                    "file of each tensor.");
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [name, file] : document["weight_map"].items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    const bool plain = !shard.empty() && shard != "." && shard != ".." && shard.find('/') == std::string::npos;
    TORCH_CHECK_VALUE(plain, "index ", index, ": expected the name of a file in the same folder for \"", name,
                      "\", found ", io::shown_json(file), ".");
    files[shard].insert(name);
  }
  TORCH_CHECK_VALUE(!files.empty(), "index ", index, ": \"weight_map\" names no tensors.");
  std::vector<WeightShard> shards;
  shards.reserve(files.size());
  for (auto& [file, names] : files) shards.push_back({file, std::move(names)});
  return shards;
}

NamedTensors load_one(const std::string& path_or_address) {
  const LocalCopy copy = local_copy(path_or_address);
  try {
    return io::load_tensors(copy.path);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(copy.remote.content == nullptr, path_or_address, ": ", user_message(error));
    throw;
  }
}

NamedTensors load_sharded(const std::string& index) {
  std::vector<WeightShard> shards;
  {
    const LocalCopy copy = local_copy(index);
    shards = shards_of(index, read_text_file(copy.path));
  }
  NamedTensors tensors;
  for (WeightShard& shard : shards) {
    const std::string file = sibling(index, shard.file);
    NamedTensors loaded = load_one(file);
    tensors.reserve(tensors.size() + loaded.size());
    for (auto& [name, tensor] : loaded) {
      if (shard.names.erase(name) > 0) tensors.emplace_back(name, std::move(tensor));
    }
    TORCH_CHECK_VALUE(shard.names.empty(), file, ": expected the tensor \"", *shard.names.begin(),
                      "\", which the index ", index, " names, but it is missing. Download the files again.");
  }
  return tensors;
}

NamedTensors load_repository(const io::HubAddress& repository) {
  for (const std::string_view file : usual_files) {
    const std::string address = repository.with_file(file).text();
    try {
      return is_index(address) ? load_sharded(address) : load_one(address);
    } catch (const io::MissingRemoteFile& error) {
      if (user_message(error).find(address) == std::string::npos) throw;  // a file that an index names
    }
  }
  TORCH_CHECK_VALUE(false, repository.text(), ": the server has none of the files ", c10::Join(", ", usual_files),
                    ". Check the names of the repository and the revision, or name a file: ", repository.text(),
                    "/FILE.");
}

/// Converts a name of transformers' ResNetForImageClassification to torchvision's, such as
/// `resnet.encoder.stages.0.layers.1.layer.2.convolution.weight` to `layer1.1.conv3.weight`.
std::string torchvision_name(const std::string& name) {
  const auto with_part = [](const std::string& place, const std::string& convolution, const std::string& norm,
                            const std::string& rest) {
    if (rest.starts_with("convolution.")) return place + convolution + rest.substr(11);
    if (rest.starts_with("normalization.")) return place + norm + rest.substr(13);
    return std::string();
  };
  constexpr std::string_view stem = "resnet.embedder.embedder.", stages = "resnet.encoder.stages.";
  std::string converted;
  if (name.starts_with("classifier.1.")) converted = "fc." + name.substr(13);
  if (name.starts_with(stem)) converted = with_part("", "conv1", "bn1", name.substr(stem.size()));
  if (name.starts_with(stages)) {
    std::array<char, 12> kind{};
    int stage = 0, block = 0, part = 0, used = 0;
    const std::string rest = name.substr(stages.size());
    if (std::sscanf(rest.c_str(), "%4d.layers.%4d.layer.%4d.%n", &stage, &block, &part, &used) == 3 && used > 0) {
      const std::string number = std::to_string(part + 1);
      converted = with_part(c10::str("layer", stage + 1, ".", block, "."), "conv" + number, "bn" + number,
                            rest.substr(static_cast<size_t>(used)));
    } else if (std::sscanf(rest.c_str(), "%4d.layers.%4d.%9[a-z].%n", &stage, &block, kind.data(), &used) == 3 &&
               used > 0 && std::string_view(kind.data()) == "shortcut") {
      converted = with_part(c10::str("layer", stage + 1, ".", block, ".downsample."), "0", "1",
                            rest.substr(static_cast<size_t>(used)));
    }
  }
  return converted.empty() ? name : converted;
}

NamedTensors with_torchvision_names(NamedTensors tensors) {
  const bool of_transformers =
      std::ranges::any_of(tensors, [](const auto& item) { return item.first.starts_with("resnet.encoder.stages."); });
  if (!of_transformers) return tensors;
  for (auto& [name, tensor] : tensors) name = torchvision_name(name);
  return tensors;
}

}  // namespace

NamedTensors load_pretrained(const std::string& path_or_address) {
  if (is_index(path_or_address)) return with_torchvision_names(load_sharded(path_or_address));
  if (io::is_hub_address(path_or_address)) {
    const io::HubAddress address = io::parse_hub_address(path_or_address);
    TORCH_CHECK_VALUE(!address.file.empty() || path_or_address.find('#') == std::string::npos, path_or_address,
                      ": a checksum needs the address of one file, such as ",
                      address.with_file("model.safetensors").text(), "#sha256=….");
    if (address.file.empty()) return with_torchvision_names(load_repository(address));
  }
  return with_torchvision_names(load_one(path_or_address));
}

std::string pretrained_config(const std::string& weights) {
  if (!io::is_hub_address(weights)) return "";
  const io::HubAddress address = io::parse_hub_address(weights);
  const size_t slash = address.file.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : address.file.substr(0, slash + 1);
  return address.with_file(folder + "config.json").text();
}

}  // namespace bellows::models
