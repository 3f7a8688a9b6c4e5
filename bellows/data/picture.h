#pragma once

#include "bellows/data/sample.h"

namespace bellows::data {

/// A file png, jpg, jpeg or image, or pixels: a uint8 array "image" [H, W, C].
bool is_picture(const Field& field);

/// The sample's first picture; null when it has none.
const Field* find_picture(const Sample& sample);

}  // namespace bellows::data
