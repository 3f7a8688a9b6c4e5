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

/// The feature in which tfrecord_sink() notes the arrays that a list of numbers does not describe in full: a byte string
/// "DTYPE[SIZES] NAME" for each, such as "uint8[8,8,3] image".
inline constexpr std::string_view example_arrays_feature = "bellows/arrays";
/// The feature that is a sample's key.
inline constexpr std::string_view example_key_feature = "__key__";

/// How the values of an array stand in a tf.train.Example.
enum class ExampleStore { int64s, floats, bytes };
ExampleStore example_store(c10::ScalarType dtype);

/// What a note says; its name points into the note, its sizes are appended to `sizes`.
struct ExampleArray {
  std::string_view name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  size_t first_size = 0, rank = 0;  ///< its sizes in the list
  size_t values = 1;
};

/// Throws: c10::ValueError – dtype unknown, or sizes that are none
ExampleArray parse_example_array(std::string_view note, std::vector<int64_t>& sizes);
/// The note of an array that becomes feature `name`; nothing where its list of numbers says it all.
/// Throws: c10::ValueError – a dtype that has no name here
std::optional<std::string> format_example_array(const Field& array, std::string_view name);

/// Integers of at most 32 bits, int64 and bool: what widen_integers takes.
bool is_widened(c10::ScalarType dtype);
/// The values of such an array as int64.
std::vector<int64_t> widen_integers(const Field& array);
/// The reverse.
/// Params: values – int64, need not be aligned
///         out    – as many numbers of type `dtype`
/// Throws: c10::ValueError – a value that the type does not hold
void narrow_integers(std::span<const std::byte> values, c10::ScalarType dtype, std::byte* out);

/// What a thread needs again for every record.
struct ExampleWorkspace {
  io::ExampleReader example;
  std::vector<ExampleArray> arrays;  // sorted by name
};

/// Makes a sample's fields of the features of the message that workspace.example has parsed, as open_tfrecord says.
/// Params: file – the bytes that the message lies in
/// Throws: c10::ValueError – notes of arrays that do not fit, two features that become one field
void make_example_fields(ExampleWorkspace& workspace, const TfrecordOptions& options, std::string_view file,
                         Sample& sample);

}  // namespace bellows::data
