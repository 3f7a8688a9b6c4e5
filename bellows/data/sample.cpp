#include "bellows/data/sample.h"

#include <c10/util/Exception.h>

namespace bellows::data {

Field Field::of(std::string_view name, const at::Tensor& array) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(array.is_contiguous() && array.device().is_cpu());
  Field field;
  field.name = name;
  field.bytes = {static_cast<const std::byte*>(array.const_data_ptr()), array.nbytes()};
  field.is_array = true;
  field.dtype = array.scalar_type();
  field.sizes = array.sizes();
  return field;
}

const Field* Sample::find(std::string_view name) const {
  for (const Field& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::string Sample::where(const Field* field) const {
  std::string text = key.empty() ? c10::str("sample ", id) : c10::str("sample \"", key, "\" (id ", id, ")");
  if (!field && !fields.empty()) field = &fields.front();
  if (!file.empty() && field) text += c10::str(", ", field->name, " at byte ", field->offset, " of ", file);
  return text;
}

std::string Sample::field_names() const {
  std::string names;
  for (const Field& field : fields) names += (names.empty() ? "" : ", ") + std::string(field.name);
  return names.empty() ? "nothing" : names;
}

void Sample::clear() {
  id = 0;
  key = file = {};
  fields.clear();
  buffer.clear();
  shapes.clear();
  owner.reset();
  origin = nullptr;
  origin_file = 0;
}

}  // namespace bellows::data
