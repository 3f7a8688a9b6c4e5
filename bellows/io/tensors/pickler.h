#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bellows/io/tensors/pickle_value.h"

namespace bellows::io {

/// Serializes a value like Python's torch.save, in pickle protocol 2 with numbered storages.
/// Ref: torch/serialization.py `_save`
class Pickler {
 public:
  /// Throws: c10::ValueError if the format does not support a tensor, or if a container contains itself
  explicit Pickler(const PickleValue& value);

  const std::string& pickle() const { return out_; }
  /// The storages in the order of their numbers.
  const std::vector<c10::Storage>& storages() const { return storages_; }

 private:
  void write(const PickleValue& value, int depth);
  void write_container(const PickleValue& value, int depth);
  void write_elements(const PickleValue::Sequence& values, int depth);
  void write_tensor(const at::Tensor& tensor);
  void write_storage(const at::Tensor& tensor, const std::string& type);
  void write_integer(int64_t value);
  void write_string(std::string_view text);
  void write_bytes(const std::string& bytes);
  void write_integers(c10::IntArrayRef values);
  void write_global(std::string_view module, std::string_view name);
  void opcode(char code) { out_ += code; }
  /// Writes a reference to the memo entry for `key`. Returns false if there is no such entry.
  bool recall(const std::string& key);
  void remember(const std::string& key);

  std::string out_;
  std::unordered_map<std::string, uint32_t> memo_;
  std::vector<c10::Storage> storages_;
  std::unordered_map<const void*, std::pair<size_t, c10::ScalarType>> storage_numbers_;
};

}  // namespace bellows::io
