#include "bellows/io/tensors/torch_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "bellows/io/archives/zip.h"
#include "bellows/io/tensors/legacy_torch_file.h"
#include "bellows/io/tensors/pickler.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/unpickler.h"
#include "bellows/system/file.h"

namespace bellows::io {

namespace {

/// Rejects other kinds of files that look like those of torch.save.
void refuse_relatives(const ZipReader& zip, const std::string& path, const std::string& root) {
  const bool script = zip.find(root + "constants.pkl") != nullptr || zip.find(root + "code/__torch__.py") != nullptr;
  TORCH_CHECK_VALUE(!script, path, ": this is a TorchScript program (torch.jit.save), not a torch.save file. ",
                    "Load it with torch::jit::load, or save the module's state_dict() with torch.save.");
  TORCH_CHECK_VALUE(zip.find(root + "data.pkl"), path,
                    ": torch.save did not write this zip archive: expected a file named ", "\"…/data.pkl\", found ",
                    printable(zip.entries().empty() ? "" : zip.entries()[0].name, 100),
                    zip.entries().size() > 1 ? " and others." : ".");
}

/// The archive's single folder, "name/", which contains all entries of torch.save.
std::string root_folder(const ZipReader& zip) {
  for (const ZipEntry& entry : zip.entries()) {
    const size_t slash = entry.name.find('/');
    if (slash != std::string::npos) return entry.name.substr(0, slash + 1);
  }
  return "";
}

void swap_bytes(std::byte* data, size_t bytes, size_t width) {
  for (size_t i = 0; i + width <= bytes; i += width) std::reverse(data + i, data + i + width);
}

/// The storages of one archive, each read once.
class StorageLoader {
 public:
  StorageLoader(const ZipReader& zip, std::string path, std::string root)
      : zip_(zip), path_(std::move(path)), root_(std::move(root)) {
    if (const ZipEntry* order = zip_.find(root_ + "byteorder")) {
      zip_.verify(*order);
      big_endian_ = as_text(order->data) == "big";
      TORCH_CHECK_VALUE(big_endian_ || as_text(order->data) == "little", path_,
                        ": expected the byte order \"little\" or \"big\" at byte ", order->offset, ", found ",
                        printable(as_text(order->data)), ".");
    }
  }

  /// Params: id – ("storage", class, key, location, number of elements)
  PickleValue load(const PickleValue& id) {
    TORCH_CHECK_VALUE(
        id.kind() == PickleValue::Kind::tuple && id.size() == 5 && id.at_index(0).as_string() == "storage",
        "expected the five parts of a storage, found ", id.describe());
    const auto* type = dynamic_cast<const PickleGlobal*>(id.at_index(1).as_opaque());
    TORCH_CHECK_VALUE(type, "expected a storage class, found ", id.at_index(1).describe());
    const c10::ScalarType dtype = storage_dtype(type->name);
    TORCH_CHECK_VALUE(
        !big_endian_ || type->name != "torch.storage.UntypedStorage",
        "an untyped storage of a big-endian machine is not supported; save the tensor as float32 or int64");
    const std::string& key = id.at_index(2).as_string();
    const ZipEntry* entry = zip_.find(root_ + "data/" + key);
    TORCH_CHECK_VALUE(entry, "the archive has no file ", printable(root_ + "data/" + key, 100));
    const int64_t count = id.at_index(4).as_int();
    const size_t width = c10::elementSize(dtype);
    TORCH_CHECK_VALUE(count >= 0 && static_cast<uint64_t>(count) <= entry->data.size() &&
                          static_cast<uint64_t>(count) * width == entry->data.size(),
                      "storage ", printable(key), " should have ", count, " elements of ", dtype, ", but its file has ",
                      entry->data.size(), " bytes");
    const auto [place, is_new] = storages_.try_emplace(key);
    if (is_new) place->second = copy(*entry, dtype);
    return PickleValue(std::make_shared<PickleStorage>(place->second, dtype));
  }

 private:
  c10::Storage copy(const ZipEntry& entry, c10::ScalarType dtype) const {
    zip_.verify(entry);
    const at::Tensor tensor =
        at::empty({static_cast<int64_t>(entry.data.size())}, at::TensorOptions().dtype(c10::kByte));
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    if (!entry.data.empty()) std::memcpy(data, entry.data.data(), entry.data.size());
    const size_t width = c10::elementSize(dtype) / (c10::isComplexType(dtype) ? 2 : 1);
    if (big_endian_ && width > 1) swap_bytes(data, entry.data.size(), width);
    return tensor.storage();
  }

  const ZipReader& zip_;
  std::string path_, root_;
  bool big_endian_ = false;
  std::unordered_map<std::string, c10::Storage> storages_;
};

}  // namespace

PickleValue torch_load_bytes(ByteSpan bytes, const std::string& where) {
  if (is_legacy_torch_file(bytes)) return legacy_torch_load(bytes, where);
  TORCH_CHECK_VALUE(as_text(bytes).starts_with("PK"), where, ": expected a torch.save file, found ",
                    describe_content(bytes), ".");
  const ZipReader zip(bytes, where);
  const std::string root = root_folder(zip);
  refuse_relatives(zip, where, root);
  StorageLoader storages(zip, where, root);
  const ZipEntry& pickle = *zip.find(root + "data.pkl");
  zip.verify(pickle);
  return unpickle(pickle.data, where, [&](const PickleValue& id) { return storages.load(id); });
}

PickleValue torch_load(const std::string& path) {
  const MappedFile file(path);
  return torch_load_bytes(file.bytes(), path);
}

namespace {

/// The storage as bytes on the CPU.
at::Tensor storage_bytes(const c10::Storage& storage) {
  const at::Tensor view = at::empty({0}, at::TensorOptions().dtype(c10::kByte).device(storage.device()));
  const auto size = static_cast<int64_t>(storage.nbytes());
  return view.set_(storage, 0, {size}, {1}).cpu();
}

}  // namespace

void torch_save(const std::string& path, const PickleValue& value) {
  const Pickler pickler(value);
  ZipWriter zip(path);
  // Python's order; torch.load uses the folder of the first entry as the archive's name.
  zip.add("archive/data.pkl", pickler.pickle());
  zip.add("archive/.format_version", "1");
  zip.add("archive/.storage_alignment", "64");
  zip.add("archive/byteorder", "little");
  size_t number = 0;
  for (const c10::Storage& storage : pickler.storages()) {
    const at::Tensor bytes = storage_bytes(storage);
    zip.add("archive/data/" + std::to_string(number++),
            ByteSpan(static_cast<const std::byte*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())));
  }
  zip.add("archive/version", "3\n");
  zip.close();
}

namespace {

bool is_tensor_dict(const PickleValue& value) {
  if (!value.is_dict() || value.size() == 0) return false;
  for (const auto& [name, element] : value.items()) {
    if (!name.is_string() || !element.is_tensor()) return false;
  }
  return true;
}

std::string first_keys(const PickleValue& dict) {
  std::string text;
  size_t shown = 0;
  for (const auto& [key, element] : dict.items()) {
    if (shown++ == 8) return text + ", …";
    text += (text.empty() ? "" : ", ") + (key.is_string() ? printable(key.as_string()) : key.describe()) + ": " +
            element.describe();
  }
  return text;
}

NamedTensors flatten(const PickleValue& value, const std::string& path) {
  TORCH_CHECK_VALUE(value.is_dict(), path, ": expected a dict of tensors, found ", value.describe(),
                    ". To read other values, use torch_load().");
  const PickleValue* tensors = is_tensor_dict(value) || value.size() == 0 ? &value : nullptr;
  for (const char* key : {"state_dict", "model_state_dict", "model", "weights"}) {
    if (tensors) break;
    const PickleValue* nested = value.find(key);
    if (nested && is_tensor_dict(*nested)) tensors = nested;
  }
  TORCH_CHECK_VALUE(tensors, path,
                    ": expected a dict of tensors, at the top or under \"state_dict\", \"model_state_dict\", ",
                    "\"model\" or \"weights\"; found ", value.describe(), ": ", first_keys(value),
                    ". Load the file with torch_load(), and select the part that contains the tensors.");
  NamedTensors result;
  for (const auto& [name, element] : tensors->items()) result.emplace_back(name.as_string(), element.as_tensor());
  return result;
}

/// A safetensors file starts with the length of its header, and the header with a brace.
bool looks_like_safetensors(ByteSpan bytes) {
  return bytes.size() > 8 && static_cast<char>(bytes[8]) == '{';
}

}  // namespace

NamedTensors load_tensors(const std::string& path) {
  const MappedFile file(path);
  if (as_text(file.bytes()).starts_with("PK") || is_legacy_torch_file(file.bytes()))
    return flatten(torch_load_bytes(file.bytes(), path), path);
  TORCH_CHECK_VALUE(looks_like_safetensors(file.bytes()), path, ": expected a safetensors or a torch.save file, found ",
                    describe_content(file.bytes()), ".");
  return load_safetensors(path);
}

}  // namespace bellows::io
