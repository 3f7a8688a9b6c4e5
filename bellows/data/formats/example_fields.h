#pragma once

#include <string_view>
#include <vector>

#include "bellows/data/formats/example_arrays.h"
#include "bellows/data/formats/tfrecord_source.h"
#include "bellows/io/records/example.h"

namespace bellows::data {

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
