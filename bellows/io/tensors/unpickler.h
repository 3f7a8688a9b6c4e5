#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "bellows/io/bytes.h"
#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Parses a pickle (protocols 2 to 5) without executing anything. Classes and functions are looked up by name in a
/// small table.
/// Params: where – name of the pickle for error messages
///         persistent_load – converts a persistent id (a storage of torch.save) to a value
/// Throws: c10::ValueError if the pickle is truncated or corrupt, uses an unknown class (the message names it), is
///         cyclic, or has more than 256 nesting levels
/// Ref:    torch/_weights_only_unpickler.py
PickleValue unpickle(ByteSpan bytes, const std::string& where,
                     const std::function<PickleValue(const PickleValue& id)>& persistent_load);

/// Like unpickle(), but reads the pickle at the start of `bytes` and removes it from `bytes`.
PickleValue unpickle_next(ByteSpan& bytes, const std::string& where,
                          const std::function<PickleValue(const PickleValue& id)>& persistent_load);

/// A class or function named in a pickle.
struct PickleGlobal : PickleValue::Opaque {
  explicit PickleGlobal(std::string text) : name(std::move(text)) {}
  std::string name;  ///< "torch._utils._rebuild_tensor_v2"
};

/// A storage of a torch.save file.
struct PickleStorage : PickleValue::Opaque {
  PickleStorage(c10::Storage memory, c10::ScalarType element) : storage(std::move(memory)), dtype(element) {}
  c10::Storage storage;
  c10::ScalarType dtype;  ///< Byte for an untyped storage
};

/// Returns the element type of a storage class such as "torch.FloatStorage". It is Byte for
/// "torch.storage.UntypedStorage".
/// Throws: c10::ValueError if `class_name` is not a storage class
c10::ScalarType storage_dtype(const std::string& class_name);
/// Returns the storage class of a dtype, such as "FloatStorage", or "" if the dtype has none (uint16, float8).
std::string storage_class(c10::ScalarType dtype);

}  // namespace bellows::io
