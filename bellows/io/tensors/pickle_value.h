#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::io {

/// A value of a torch.save file: None, bool, int, float, str, bytes, list, tuple, dict, tensor, dtype, device.
///
/// Containers are references, as in Python: a copy of a list is the same list.
/// Threads: reading is thread-safe
class PickleValue {
 public:
  enum class Kind { none, boolean, integer, real, string, bytes, list, tuple, dict, tensor, dtype, device, opaque };
  /// A value that exists only while a file is read (a class, a storage); never part of a result.
  struct Opaque {
    virtual ~Opaque() = default;
  };
  using Sequence = std::vector<PickleValue>;
  using Item = std::pair<PickleValue, PickleValue>;

  PickleValue() = default;
  PickleValue(bool value) : data_(value) {}
  PickleValue(int value) : data_(int64_t{value}) {}
  PickleValue(int64_t value) : data_(value) {}
  PickleValue(double value) : data_(value) {}
  PickleValue(const char* value) : data_(std::make_shared<const std::string>(value)) {}
  PickleValue(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  PickleValue(at::Tensor value) : data_(std::move(value)) {}
  PickleValue(c10::ScalarType value) : data_(value) {}
  PickleValue(c10::Device value) : data_(value) {}
  PickleValue(std::shared_ptr<Opaque> value) : data_(std::move(value)) {}
  /// A dict of tensors in this order: a state dict.
  PickleValue(const NamedTensors& tensors);

  static PickleValue bytes(std::string value);
  static PickleValue list(Sequence values = {});
  static PickleValue tuple(Sequence values = {});
  /// A dict that keeps its order.
  /// Params: ordered – write it as collections.OrderedDict
  static PickleValue dict(std::vector<Item> items = {}, bool ordered = false);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  /// A description for messages: "a dict of 3", "a float32 tensor [2, 3]", "the string 'adam'".
  std::string describe() const;
  bool is_none() const { return kind() == Kind::none; }
  bool is_tensor() const { return kind() == Kind::tensor; }
  bool is_dict() const { return kind() == Kind::dict; }
  bool is_string() const { return kind() == Kind::string; }
  /// A list or a tuple.
  bool is_sequence() const { return kind() == Kind::list || kind() == Kind::tuple; }
  /// True if it was read from, or will be written as, collections.OrderedDict.
  bool is_ordered_dict() const;

  // Throws: each throws c10::ValueError if the value is of another kind; the message says what was expected and what
  //         was found
  bool as_bool() const;
  int64_t as_int() const;
  /// Accepts an int, too.
  double as_double() const;
  /// Accepts str and bytes.
  const std::string& as_string() const;
  const at::Tensor& as_tensor() const;
  c10::ScalarType as_dtype() const;
  c10::Device as_device() const;
  /// Null for other kinds.
  const Opaque* as_opaque() const;

  /// Number of elements of a list or tuple, or of entries of a dict.
  size_t size() const;
  /// Elements of a list or tuple.
  const Sequence& elements() const;
  /// Entries of a dict, in order.
  const std::vector<Item>& items() const;
  /// The entry of a dict, or null.
  const PickleValue* find(const PickleValue& key) const;
  bool contains(const PickleValue& key) const { return find(key) != nullptr; }
  /// The entry of a dict.
  /// Throws: c10::ValueError if the key is unknown (the message suggests the nearest one)
  const PickleValue& at(const PickleValue& key) const;
  /// The element of a list or tuple.
  /// Throws: c10::ValueError if `i` is out of range
  const PickleValue& at_index(size_t i) const;

  /// Appends to a list.
  void push_back(PickleValue value);
  /// Adds or replaces an entry of a dict.
  /// Throws: c10::ValueError if `key` is not hashable in Python (list, dict)
  void set(const PickleValue& key, PickleValue value);
  /// Releases all elements of a list, tuple or dict; has no effect on other kinds.
  void clear();
  /// Identifies a container: equal for two values that refer to the same container; null for other kinds.
  const void* identity() const;

 private:
  struct BytesData;
  struct ListData;
  struct TupleData;
  struct DictData;
  using Data =
      std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const std::string>,
                   std::shared_ptr<BytesData>, std::shared_ptr<ListData>, std::shared_ptr<TupleData>,
                   std::shared_ptr<DictData>, at::Tensor, c10::ScalarType, c10::Device, std::shared_ptr<Opaque>>;
  Data data_;
};

}  // namespace bellows::io
