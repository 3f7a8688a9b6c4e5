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

/// One part of a sample: an encoded file ("png", "cls", "json", …) or an array that is already decoded.
struct Field {
  std::string_view name;             ///< a file's suffix in lower case, or an array's name
  std::span<const std::byte> bytes;  ///< the file's content, or the array's values, contiguous
  uint64_t offset = 0;               ///< where `bytes` starts in Sample::file
  bool is_array = false;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< of an array
  c10::IntArrayRef sizes;                         ///< of an array

  /// Params: array – on the CPU and contiguous; it has to outlive the field
  static Field of(std::string_view name, const at::Tensor& array);
};

/// Asked when the bytes of a sample turn out to be damaged after the source has handed it out: an image that cannot be
/// decoded. Implemented by what reads files.
class SampleOrigin {
 public:
  virtual ~SampleOrigin() = default;
  /// Says that the content of a file is damaged. A downloaded copy is fetched anew when the file is next opened.
  /// Returns: a sentence for the error message that names the copy, with a space in front; "" where there is none
  virtual std::string doubt(size_t file) const = 0;
};

/// One sample as a source hands it out, without copying: all views point into the source's memory.
///
/// Views stay valid while the source lives and, where `owner` is set, while a copy of `owner` does.
struct Sample {
  int64_t id = 0;         ///< stable: the position in the root source, also when read through a subset
  std::string_view key;   ///< the name that its files share; "" when the source has no names
  std::string_view file;  ///< the shard's path; "" when there is no file
  std::vector<Field> fields;
  const SampleOrigin* origin = nullptr;  ///< null: the bytes were not downloaded, or the source looks after them
  size_t origin_file = 0;                ///< for origin->doubt()
  std::shared_ptr<const void> owner;     ///< keeps the views alive where the source itself does not
  /// Memory for what a source unpacks, and for the sizes of its arrays; views may point into it, and the next sample
  /// uses it again. Reserve before taking views.
  std::vector<std::byte> buffer;
  std::vector<int64_t> shapes;

  Sample() = default;
  Sample(Sample&&) = default;
  Sample& operator=(Sample&&) = default;

  /// The field, or null.
  const Field* find(std::string_view name) const;
  /// Where it is, for messages: `sample "0001" (id 1), png at byte 512 of train-000.tar`.
  /// Params: field – one of `fields`; null: the first
  std::string where(const Field* field = nullptr) const;
  void clear();
};

}  // namespace bellows::data
