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

/// A value in a torch.save file: None, bool, int, float, str, bytes, list, tuple, dict, tensor, dtype, device.
///
/// Containers are references, as in Python. A copy of a list refers to the same list.
/// Threads: reading is thread-safe
class PickleValue {
 public:
  enum class Kind { none, boolean, integer, real, string, bytes, list, tuple, dict, tensor, dtype, device, opaque };
  /// A value that exists only while a file is read, such as a class or a storage. It is never part of a result.
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
  /// Creates a dict of tensors (a state dict), which keeps the order of `tensors`.
  PickleValue(const NamedTensors& tensors);

  static PickleValue bytes(std::string value);
  static PickleValue list(Sequence values = {});
  static PickleValue tuple(Sequence values = {});
  /// Creates a dict that keeps the order of its items.
  /// Params: ordered – true: the dict is written as collections.OrderedDict
  static PickleValue dict(std::vector<Item> items = {}, bool ordered = false);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  /// Describes the value for messages: "a dict of 3", "a float32 tensor [2, 3]", "the string 'adam'".
  std::string describe() const;
  bool is_none() const { return kind() == Kind::none; }
  bool is_tensor() const { return kind() == Kind::tensor; }
  bool is_dict() const { return kind() == Kind::dict; }
  bool is_string() const { return kind() == Kind::string; }
  /// True for a list or a tuple.
  bool is_sequence() const { return kind() == Kind::list || kind() == Kind::tuple; }
  /// True for a dict that was read from collections.OrderedDict or will be written as one.
  bool is_ordered_dict() const;

  // Throws: all functions below throw c10::ValueError if the value is of a different kind (the message states the
  //         expected and the actual kind)
  bool as_bool() const;
  int64_t as_int() const;
  /// Also accepts an int.
  double as_double() const;
  /// Accepts str and bytes values.
  const std::string& as_string() const;
  const at::Tensor& as_tensor() const;
  c10::ScalarType as_dtype() const;
  c10::Device as_device() const;
  /// Returns null for other kinds.
  const Opaque* as_opaque() const;

  /// The number of elements of a list or tuple, or of entries of a dict.
  size_t size() const;
  /// The elements of a list or tuple.
  const Sequence& elements() const;
  /// The entries of a dict, in order.
  const std::vector<Item>& items() const;
  /// Returns an entry of a dict, or null if there is none.
  const PickleValue* find(const PickleValue& key) const;
  bool contains(const PickleValue& key) const { return find(key) != nullptr; }
  /// Returns an entry of a dict.
  /// Throws: c10::ValueError if the key is unknown (the message suggests the nearest key)
  const PickleValue& at(const PickleValue& key) const;
  /// Returns an element of a list or tuple.
  /// Throws: c10::ValueError if `i` is out of range
  const PickleValue& at_index(size_t i) const;

  /// Appends a value to a list.
  void push_back(PickleValue value);
  /// Adds or replaces an entry of a dict.
  /// Throws: c10::ValueError if `key` is not hashable in Python (list, dict)
  void set(const PickleValue& key, PickleValue value);
  /// Removes all elements of a list, tuple or dict. Values of other kinds do not change.
  void clear();
  /// Identifies a container. Two values that refer to the same container have the same identity. For values of other
  /// kinds, the result is null.
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
