#include "bellows/io/tensors/legacy_torch_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "bellows/io/tensors/unpickler.h"

namespace bellows::io {

namespace {

using namespace std::string_view_literals;

/// The number 0x1950a86a20f9469cfc6c as a separate pickle.
constexpr std::string_view legacy_magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;
constexpr int64_t legacy_protocol = 1001;

/// The storages of a file. The pickle names them, and their contents follow behind all pickles.
class LegacyStorages {
 public:
  /// Params: limit – number of bytes that all storages together may have
  explicit LegacyStorages(size_t limit) : left_(limit) {}

  /// Params: id – ("storage", class, key, location, number of elements, view)
  PickleValue add(const PickleValue& id) {
    TORCH_CHECK_VALUE(id.kind() == PickleValue::Kind::tuple && id.size() >= 1,
                      "expected the parts of a storage, found ", id.describe());
    const std::string& kind = id.at_index(0).as_string();
    TORCH_CHECK_VALUE(kind != "module", "the file contains a module; save its state_dict() instead");
    TORCH_CHECK_VALUE(kind == "storage" && (id.size() == 5 || id.size() == 6),
                      "expected the five or six parts of a storage, found ", id.describe());
    const auto* type = dynamic_cast<const PickleGlobal*>(id.at_index(1).as_opaque());
    TORCH_CHECK_VALUE(type, "expected a storage class, found ", id.at_index(1).describe());
    TORCH_CHECK_VALUE(
        id.size() == 5 || id.at_index(5).is_none(),
        "the file contains a view of a storage, which is not supported; load the file in Python and save it again");
    const Entry& entry = entry_of(id.at_index(2).as_string(), storage_dtype(type->name), id.at_index(4).as_int());
    return PickleValue(std::make_shared<PickleStorage>(entry.storage, entry.dtype));
  }

  /// Copies the contents of a storage from the start of `bytes`, and returns the number of bytes read.
  size_t fill(const std::string& key, ByteSpan bytes) {
    const auto found = entries_.find(key);
    TORCH_CHECK_VALUE(found != entries_.end(), "corrupt: no tensor uses storage ", printable(key));
    Entry& entry = found->second;
    TORCH_CHECK_VALUE(!entry.is_filled, "corrupt: storage ", printable(key), " is listed twice");
    const size_t size = entry.storage.nbytes();
    TORCH_CHECK_VALUE(bytes.size() >= sizeof(int64_t) && bytes.size() - sizeof(int64_t) >= size, "truncated: expected ",
                      size, " bytes of storage ", printable(key), ", found ",
                      bytes.size() - std::min(bytes.size(), sizeof(int64_t)));
    const auto count = static_cast<int64_t>(load_little<uint64_t>(bytes.first(sizeof(int64_t))));
    TORCH_CHECK_VALUE(count == entry.count, "corrupt: expected ", entry.count, " elements in storage ", printable(key),
                      ", found ", count);
    if (size > 0) std::memcpy(entry.storage.mutable_data(), bytes.data() + sizeof(int64_t), size);
    entry.is_filled = true;
    return sizeof(int64_t) + size;
  }

  void check_filled() const {
    for (const auto& [key, entry] : entries_)
      TORCH_CHECK_VALUE(entry.is_filled, "corrupt: the contents of storage ", printable(key), " are missing");
  }

 private:
  struct Entry {
    c10::Storage storage;
    c10::ScalarType dtype;
    int64_t count = 0;
    bool is_filled = false;
  };

  const Entry& entry_of(const std::string& key, c10::ScalarType dtype, int64_t count) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) {
      TORCH_CHECK_VALUE(found->second.dtype == dtype && found->second.count == count, "corrupt: storage ",
                        printable(key), " has two types or sizes");
      return found->second;
    }
    const size_t width = c10::elementSize(dtype);
    TORCH_CHECK_VALUE(count >= 0 && static_cast<uint64_t>(count) <= left_ / width, "truncated: storage ",
                      printable(key), " should have ", count, " elements of ", dtype, ", but the file has ", left_,
                      " bytes left");
    const size_t size = static_cast<size_t>(count) * width;
    left_ -= size;
    const at::Tensor memory = at::empty({static_cast<int64_t>(size)}, at::TensorOptions().dtype(c10::kByte));
    return entries_.emplace(key, Entry{memory.storage(), dtype, count}).first->second;
  }

  size_t left_;
  std::unordered_map<std::string, Entry> entries_;
};

void check_system(const PickleValue& system) {
  const PickleValue* little = system.is_dict() ? system.find("little_endian") : nullptr;
  TORCH_CHECK_VALUE(!little || little->as_bool(),
                    "files of big-endian machines in the format before PyTorch 1.6 are not supported; load the file in "
                    "Python and save it again");
}

}  // namespace

bool is_legacy_torch_file(ByteSpan bytes) {
  return as_text(bytes).starts_with(legacy_magic);
}

PickleValue legacy_torch_load(ByteSpan bytes, const std::string& where) {
  TORCH_CHECK_VALUE(is_legacy_torch_file(bytes), where,
                    ": expected a torch.save file in the format before PyTorch 1.6, found ", describe_content(bytes),
                    ".");
  ByteSpan rest = bytes.subspan(legacy_magic.size());
  LegacyStorages storages(rest.size());
  const auto no_storage = [](const PickleValue& id) -> PickleValue {
    TORCH_CHECK_VALUE(false, "expected plain data, found ", id.describe());
  };
  const PickleValue protocol = unpickle_next(rest, where, no_storage);
  const PickleValue system = unpickle_next(rest, where, no_storage);
  PickleValue result;
  try {
    TORCH_CHECK_VALUE(protocol.as_int() == legacy_protocol, "expected protocol version ", legacy_protocol, ", found ",
                      protocol.as_int());
    check_system(system);
    result = unpickle_next(rest, where, [&](const PickleValue& id) { return storages.add(id); });
    const PickleValue keys = unpickle_next(rest, where, no_storage);
    for (const PickleValue& key : keys.elements()) rest = rest.subspan(storages.fill(key.as_string(), rest));
    storages.check_filled();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    TORCH_CHECK_VALUE(false, text.starts_with(where) ? text : where + ": " + text);
  }
  return result;
}

}  // namespace bellows::io
