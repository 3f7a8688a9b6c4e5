#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// One part of a sample: an encoded file ("png", "cls", "json", …) or a decoded array.
struct Field {
  std::string_view name;             ///< lower-case suffix of a file, or name of an array
  std::span<const std::byte> bytes;  ///< content of the file, or values of the array (contiguous)
  uint64_t offset = 0;               ///< byte offset of `bytes` in Sample::file
  bool is_array = false;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< arrays only: element type
  c10::IntArrayRef sizes;                         ///< arrays only: shape

  /// Creates an array field that points to the data of `array`.
  /// Params: array – contiguous, on the CPU; must outlive the field
  static Field of(std::string_view name, const at::Tensor& array);
};

/// An interface for reporting damaged bytes to the source, for example if an image cannot be decoded. Classes that read
/// files implement it.
class SampleOrigin {
 public:
  virtual ~SampleOrigin() = default;
  /// Reports that the content of a file is damaged. If the file is a downloaded copy, it is downloaded again the next
  /// time it is opened.
  /// Returns: a sentence that names the copy, to be appended to the error message (it starts with a space); "" if there
  ///          is no copy
  virtual std::string doubt(size_t file) const = 0;
};

/// One sample of a source. Its data is not copied: all views point into the source's memory.
///
/// The views are valid while the source exists and, if `owner` is set, while a copy of `owner` exists.
struct Sample {
  int64_t id = 0;         ///< position in the root source; a subset does not change it
  std::string_view key;   ///< name that the sample's files share; "" if the source has no names
  std::string_view file;  ///< path of the shard; "" if there is no file
  std::vector<Field> fields;
  /// The object to which damaged bytes are reported. Null if the bytes were not downloaded, or if the source handles
  /// damage itself.
  const SampleOrigin* origin = nullptr;
  size_t origin_file = 0;             ///< argument of origin->doubt()
  std::shared_ptr<const void> owner;  ///< keeps the viewed memory alive if the source itself does not
  /// Memory for data that the source decompresses, and for the shapes of its arrays. Views may point into this memory,
  /// and the next sample reuses it. Reserve the capacity before you create views, because growing the vectors
  /// invalidates the views.
  std::vector<std::byte> buffer;
  std::vector<int64_t> shapes;

  Sample() = default;
  Sample(Sample&&) = default;
  Sample& operator=(Sample&&) = default;

  /// Returns the field with this name, or null.
  const Field* find(std::string_view name) const;
  /// Describes the sample's location for messages: `sample "0001" (id 1), png at byte 512 of train-000.tar`.
  /// Params: field – one of `fields`, or null for the first field
  std::string where(const Field* field = nullptr) const;
  /// Returns the names of all fields for messages, such as "png, cls". Returns "nothing" if the sample has no fields.
  std::string field_names() const;
  void clear();
};

}  // namespace bellows::data
