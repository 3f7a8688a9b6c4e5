#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/formats/tfrecord_source.h"
#include "bellows/data/sample.h"
#include "bellows/io/records/example.h"

namespace bellows::data {

/// The feature in which tfrecord_sink() describes the arrays that a list of numbers does not describe completely: a
/// byte string "DTYPE[SIZES] NAME" for each, such as "uint8[8,8,3] image".
inline constexpr std::string_view example_arrays_feature = "bellows/arrays";
/// The feature that holds a sample's key.
inline constexpr std::string_view example_key_feature = "__key__";

/// How the values of an array are stored in a tf.train.Example.
enum class ExampleStore { int64s, floats, bytes };
ExampleStore example_store(c10::ScalarType dtype);

/// A parsed description of an array. Its name is a view into the description; its sizes are appended to `sizes`.
struct ExampleArray {
  std::string_view name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  size_t first_size = 0, rank = 0;  ///< range of its sizes in the list
  size_t values = 1;
};

/// Throws: c10::ValueError if the dtype is unknown or the sizes are invalid
ExampleArray parse_example_array(std::string_view note, std::vector<int64_t>& sizes);
/// The description of an array that becomes feature `name`; nothing if its list of numbers describes it completely.
/// Throws: c10::ValueError if the dtype is not supported
std::optional<std::string> format_example_array(const Field& array, std::string_view name);

/// True for integers of at most 32 bits, int64 and bool, which widen_integers accepts.
bool is_widened(c10::ScalarType dtype);
/// Converts the values of such an array to int64.
std::vector<int64_t> widen_integers(const Field& array);
/// The inverse of widen_integers.
/// Params: values – int64, may be unaligned
///         out – the same number of elements of type `dtype`
/// Throws: c10::ValueError if the type cannot represent a value
void narrow_integers(std::span<const std::byte> values, c10::ScalarType dtype, std::byte* out);

/// Buffers that a thread reuses for every record.
struct ExampleWorkspace {
  io::ExampleReader example;
  std::vector<ExampleArray> arrays;  // sorted by name
};

/// Fills a sample's fields from the features of the message that workspace.example has parsed; see open_tfrecord.
/// Params: file – the bytes that contain the message
/// Throws: c10::ValueError if the descriptions of arrays do not match the features, or if two features become one field
void make_example_fields(ExampleWorkspace& workspace, const TfrecordOptions& options, std::string_view file,
                         Sample& sample);

}  // namespace bellows::data
