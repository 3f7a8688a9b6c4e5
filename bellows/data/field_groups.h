#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// An array that is computed from one or more fields of a sample.
struct FieldGroup {
  std::string name;                 ///< name of the array
  std::vector<std::string> fields;  ///< names of the fields, in the order of the array's elements
  /// Size to which an encoded image is scaled by nearest-pixel sampling; 0: not scaled.
  int64_t height = 0, width = 0;
  bool mask = false;  ///< if true, an encoded image with one channel becomes [H, W]
};

/// Returns `source` with the fields of each group replaced by one array. The fields of the group determine the array:
/// - One encoded image (PNG or JPEG) becomes uint8 [H, W, C]. A one-channel image becomes [H, W] if `mask` is set.
/// - One array that is not a scalar gets the name of the group, and its values do not change.
/// - Numbers become float32 [n], one element per field. A number is an array of one element or a text, such as a cell
///   of a CSV table.
///
/// Params: groups – a field may belong to several groups; fields without a group stay unchanged
/// Throws: c10::ValueError if `source` is null, if a group has no name or no fields, or if two groups have the same
///         name. read() throws c10::ValueError if a field is missing or is of a kind that is not listed above; the
///         message names the sample and its location
SourcePtr group_fields(SourcePtr source, std::vector<FieldGroup> groups);

/// Returns the names of the fields of `sample` that hold exactly one number, in the order of the fields.
/// Params: except – names that are not returned
std::vector<std::string> number_fields(const Sample& sample, const std::vector<std::string>& except = {});

}  // namespace bellows::data
