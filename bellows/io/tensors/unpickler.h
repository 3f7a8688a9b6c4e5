#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "bellows/io/bytes.h"
#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Reads a pickle (protocols 2 to 5) without executing anything: classes and functions are names that a small table
/// knows.
/// Params:   where – names the pickle in errors; persistent_load – turns a persistent id (torch.save's storages) into a
///           value
/// Throws:   c10::ValueError – truncated, corrupt, an unknown class (named), cyclic or nested deeper than 256
/// Ref:      torch/_weights_only_unpickler.py
PickleValue unpickle(ByteSpan bytes, const std::string& where,
                     const std::function<PickleValue(const PickleValue& id)>& persistent_load);

/// A class or function that a pickle names.
struct PickleGlobal : PickleValue::Opaque {
  explicit PickleGlobal(std::string text) : name(std::move(text)) {}
  std::string name;  ///< "torch._utils._rebuild_tensor_v2"
};

/// A storage that a torch.save file holds.
struct PickleStorage : PickleValue::Opaque {
  PickleStorage(c10::Storage memory, c10::ScalarType element) : storage(std::move(memory)), dtype(element) {}
  c10::Storage storage;
  c10::ScalarType dtype;  ///< Byte for an untyped storage
};

/// The element type of "torch.FloatStorage" and its like; of "torch.storage.UntypedStorage": Byte.
/// Throws: c10::ValueError – not a storage class
c10::ScalarType storage_dtype(const std::string& class_name);
/// "FloatStorage", or "" for a dtype that has no storage class of its own (uint16, float8).
std::string storage_class(c10::ScalarType dtype);

}  // namespace bellows::io
