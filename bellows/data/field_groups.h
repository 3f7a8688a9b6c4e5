#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// One array that is made of one or more fields of a sample.
struct FieldGroup {
  std::string name;                 ///< of the array
  std::vector<std::string> fields;  ///< in this order
  int64_t height = 0, width = 0;    ///< an encoded image is scaled to this size (nearest pixel); 0: no scaling
  bool mask = false;                ///< if true, an encoded image with one channel becomes [H, W]
};

/// The samples of `source`, with one array per group in place of the group's fields:
/// - one encoded image (PNG, JPEG): uint8 [H, W, C], or [H, W] for a mask
/// - one array with dimensions: unchanged
/// - numbers (arrays of one element, texts such as the cells of a CSV table): float32 [n], one element per field
/// Params: groups – a field may be in several groups; fields that are in no group stay unchanged
/// Throws: c10::ValueError if a group has no name or no fields, or if two groups have the same name. read() throws
///         c10::ValueError if a field is missing or is none of the above; the message names the sample and its location
SourcePtr group_fields(SourcePtr source, std::vector<FieldGroup> groups);

/// Returns the names of the fields of `sample` that hold one number each, in the order of the fields.
/// Params: except – names to leave out
std::vector<std::string> number_fields(const Sample& sample, const std::vector<std::string>& except = {});

}  // namespace bellows::data
