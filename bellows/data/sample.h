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
  std::string_view name;             ///< a file's suffix in lower case, or an array's name
  std::span<const std::byte> bytes;  ///< the file's content, or the array's values, contiguous
  uint64_t offset = 0;               ///< where `bytes` starts in Sample::file
  bool is_array = false;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< of an array
  c10::IntArrayRef sizes;                         ///< of an array

  /// Params: array – contiguous, on the CPU; it must outlive the field
  static Field of(std::string_view name, const at::Tensor& array);
};

/// Reports damaged bytes back to the source, for example if an image cannot be decoded. Implemented by classes that
/// read files.
class SampleOrigin {
 public:
  virtual ~SampleOrigin() = default;
  /// Reports that the content of a file is damaged. If the file is a downloaded copy, it is fetched again when it is
  /// next opened.
  /// Returns: a sentence for the error message that names the copy, with a leading space; "" if there is no copy
  virtual std::string doubt(size_t file) const = 0;
};

/// One sample of a source, without copying: all views point into the source's memory.
///
/// Views stay valid as long as the source exists and, if `owner` is set, as long as a copy of `owner` exists.
struct Sample {
  int64_t id = 0;         ///< position in the root source; the same when read through a subset
  std::string_view key;   ///< the common name of its files; "" if the source has no names
  std::string_view file;  ///< the shard's path; "" if there is no file
  std::vector<Field> fields;
  const SampleOrigin* origin = nullptr;  ///< null: the bytes were not downloaded, or the source handles damage itself
  size_t origin_file = 0;                ///< argument of origin->doubt()
  std::shared_ptr<const void> owner;     ///< keeps the views alive if the source itself does not
  /// Memory for data that a source decompresses and for the sizes of its arrays. Views may point into it, and the next
  /// sample reuses it. Reserve the capacity before taking views.
  std::vector<std::byte> buffer;
  std::vector<int64_t> shapes;

  Sample() = default;
  Sample(Sample&&) = default;
  Sample& operator=(Sample&&) = default;

  /// Returns the field, or null.
  const Field* find(std::string_view name) const;
  /// Describes the sample's location for messages: `sample "0001" (id 1), png at byte 512 of train-000.tar`.
  /// Params: field – one of `fields`; null: the first
  std::string where(const Field* field = nullptr) const;
  /// The names of all fields, for messages: "png, cls"; "nothing" if there are none.
  std::string field_names() const;
  void clear();
};

}  // namespace bellows::data
