#include "bellows/data/picture.h"

#include <algorithm>

namespace bellows::data {

bool is_picture(const Field& field) {
  if (field.is_array) return field.name == "image" && field.dtype == c10::ScalarType::Byte && field.sizes.size() == 3;
  return field.name == "png" || field.name == "jpg" || field.name == "jpeg" || field.name == "image";
}

const Field* find_picture(const Sample& sample) {
  const auto found = std::find_if(sample.fields.begin(), sample.fields.end(), is_picture);
  return found == sample.fields.end() ? nullptr : &*found;
}

}  // namespace bellows::data
