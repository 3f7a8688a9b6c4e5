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

/// The feature in which tfrecord_sink() describes arrays. A description is needed if the list of numbers alone does not
/// determine the array. It is a byte string "DTYPE[SIZES] NAME", such as "uint8[8,8,3] image".
inline constexpr std::string_view example_arrays_feature = "bellows/arrays";
/// The feature that holds the key of a sample.
inline constexpr std::string_view example_key_feature = "__key__";

/// The representation of an array in a tf.train.Example.
enum class ExampleStore { int64s, floats, bytes };
ExampleStore example_store(c10::ScalarType dtype);

/// A parsed description of an array. The name is a view into the description. The sizes are appended to the list
/// `sizes` of parse_example_array().
struct ExampleArray {
  std::string_view name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  size_t first_size = 0, rank = 0;  ///< range of the array's sizes in the list
  size_t values = 1;
};

/// Parses a description such as "uint8[8,8,3] image".
/// Throws: c10::ValueError if the dtype is unknown or the sizes are invalid
ExampleArray parse_example_array(std::string_view note, std::vector<int64_t>& sizes);
/// Returns the description of an array that becomes the feature `name`. Returns nothing if the list of numbers alone
/// determines the array.
/// Throws: c10::ValueError if the dtype is not supported
std::optional<std::string> format_example_array(const Field& array, std::string_view name);

/// Returns true for the types that widen_integers() accepts: integers of at most 32 bits, int64 and bool.
bool is_widened(c10::ScalarType dtype);
/// Converts the values of an integer array to int64.
std::vector<int64_t> widen_integers(const Field& array);
/// Converts int64 values back to `dtype`; the inverse of widen_integers().
/// Params: values – int64 values; they may be unaligned
///         out – memory for the same number of elements of type `dtype`
/// Throws: c10::ValueError if `dtype` cannot represent a value
void narrow_integers(std::span<const std::byte> values, c10::ScalarType dtype, std::byte* out);

/// Buffers of one thread, reused for every record.
struct ExampleWorkspace {
  io::ExampleReader example;
  std::vector<ExampleArray> arrays;  // sorted by name
};

/// Fills the fields of a sample from the features of the message in `workspace.example` (see open_tfrecord()).
/// Params: file – the bytes that contain the message
/// Throws: c10::ValueError if the descriptions of arrays do not match the features, or if two features become one field
void make_example_fields(ExampleWorkspace& workspace, const TfrecordOptions& options, std::string_view file,
                         Sample& sample);

}  // namespace bellows::data
