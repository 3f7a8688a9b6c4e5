#include "bellows/serve/protocol/request_builder.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "bellows/serve/request_error.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

std::string names(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) text += (text.empty() ? "" : ", ") + spec.name;
  return text;
}

}  // namespace

RequestBuilder::RequestBuilder(const ModelSignature& model) : model_(model) {
  request_.inputs.resize(model_.inputs.size());
}

size_t RequestBuilder::input_named(std::string_view name) const {
  const auto found = std::ranges::find(model_.inputs, name, &TensorSpec::name);
  require(found != model_.inputs.end(), "unexpected input \"", name, "\" for model \"", model_.name,
          "\". Inputs: ", names(model_.inputs), ".");
  const auto index = static_cast<size_t>(found - model_.inputs.begin());
  require(!is_set(index), "input \"", name, "\" is given twice.");
  return index;
}

bool RequestBuilder::is_set(size_t index) const {
  return request_.inputs[index].defined() || (index < request_.bytes.size() && request_.bytes[index]);
}

void RequestBuilder::set_bytes(size_t index, BytesTensor tensor) {
  request_.bytes.resize(model_.inputs.size());
  request_.bytes[index] = std::make_shared<const BytesTensor>(std::move(tensor));
}

int64_t RequestBuilder::check_input(size_t index, std::string_view datatype, const std::vector<int64_t>& shape) {
  const TensorSpec& spec = model_.inputs[index];
  const std::string what = input_text(spec);
  require(datatype == type_name(spec.dtype), what, ": expected the datatype ", type_name(spec.dtype), ", got \"",
          datatype, "\".");
  constexpr size_t most_axes = 64;
  require(shape.size() <= most_axes, what, ": shape: expected at most ", most_axes, " axes.");
  for (const int64_t size : shape) require(size >= 0, what, ": shape: expected sizes of at least 0, got ", size, ".");
  check_shape(what, shape, spec);
  const auto count = element_count(shape);
  require(count.has_value(), what, ": the number of elements of the shape ", shape_text(shape), " is too large.");
  return *count;
}

void RequestBuilder::check_shape(const std::string& what, const std::vector<int64_t>& shape, const TensorSpec& spec) {
  const bool batched = model_.max_batch_size > 0;
  if (!sizes_fit(spec, batched, shape)) {
    std::vector<int64_t> expected = spec.dims;
    if (batched) expected.insert(expected.begin(), -1);
    require(false, "unexpected shape for ", what, " of model \"", model_.name, "\": expected ", shape_text(expected),
            ", got ", shape_text(shape), ".");
  }
  if (!batched) return;
  require(shape[0] >= 1 && shape[0] <= model_.max_batch_size, what, ": expected a batch size from 1 to ",
          model_.max_batch_size, ", got ", shape[0], ".");
  require(rows_ == 0 || rows_ == shape[0], what, ": the batch size is ", shape[0], ", but that of an earlier input is ",
          rows_, ".");
  request_.rows = rows_ = shape[0];
}

void RequestBuilder::check_complete() const {
  for (size_t i = 0; i < model_.inputs.size(); ++i)
    require(is_set(i), "missing input \"", model_.inputs[i].name, "\" of model \"", model_.name, "\".");
}

RequestedOutput RequestBuilder::output_named(std::string_view name) const {
  const auto found = std::ranges::find(model_.outputs, name, &TensorSpec::name);
  require(found != model_.outputs.end(), "unexpected output \"", name, "\" for model \"", model_.name,
          "\". Outputs: ", names(model_.outputs), ".");
  const auto index = static_cast<size_t>(found - model_.outputs.begin());
  for (const RequestedOutput& other : request_.outputs)
    require(other.index != index, "output \"", name, "\" is requested twice.");
  return {.index = index};
}

void RequestBuilder::complete_outputs(bool binary) {
  if (!request_.outputs.empty()) return;
  for (size_t i = 0; i < model_.outputs.size(); ++i) request_.outputs.push_back({.index = i, .binary = binary});
}

std::string input_text(const TensorSpec& spec) {
  return "input \"" + spec.name + "\"";
}

void check_data_size(const std::string& what, std::span<const int64_t> shape, int64_t count, c10::ScalarType dtype,
                     uint64_t size, const char* size_name) {
  const uint64_t width = c10::elementSize(dtype);
  require(size % width == 0 && size / width == static_cast<uint64_t>(count), what, ": the shape ", shape_text(shape),
          " of ", type_name(dtype), " needs ", count, " elements of ", width, " bytes, but ", size_name, " is ", size,
          ".");
}

void check_booleans(const std::string& what, const at::Tensor& tensor) {
  if (tensor.scalar_type() != c10::kBool) return;
  const std::span bytes(static_cast<const uint8_t*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel()));
  require(std::ranges::all_of(bytes, [](uint8_t byte) { return byte <= 1; }), what,
          ": a byte of a BOOL tensor must be 0 or 1.");
}

at::Tensor read_shared_input(const std::string& what, const std::vector<int64_t>& shape, c10::ScalarType dtype,
                             const RegionPart& part) {
  at::Tensor tensor = at::empty(shape, dtype);
  if (part.bytes > 0) part.region->read(part.offset, tensor.mutable_data_ptr(), part.bytes);
  check_booleans(what, tensor);
  return tensor;
}

void set_classes(RequestedOutput& output, const std::string& what, uint64_t classes) {
  constexpr uint64_t most = 1 << 20;
  require(classes <= most, what, ": classification: expected at most ", most, " classes, got ", classes, ".");
  require(classes == 0 || !output.shared, what, ": classification is not possible in shared memory.");
  output.classes = static_cast<int64_t>(classes);
}

}  // namespace bellows::serve
