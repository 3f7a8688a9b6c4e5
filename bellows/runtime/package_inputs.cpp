#include "bellows/runtime/package_inputs.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace bellows::runtime {

namespace {

constexpr std::pair<std::string_view, c10::ScalarType> dtype_names[] = {
    {"float32", c10::kFloat}, {"float16", c10::kHalf}, {"bfloat16", c10::kBFloat16}, {"float64", c10::kDouble},
    {"int8", c10::kChar},     {"uint8", c10::kByte},   {"int16", c10::kShort},       {"int32", c10::kInt},
    {"int64", c10::kLong},    {"bool", c10::kBool}};

/// Text between `begin` and `end`, from `at` on. Moves `at` behind it.
std::optional<std::string_view> between(std::string_view text, std::string_view begin, std::string_view end,
                                        size_t& at) {
  const size_t start = text.find(begin, at);
  if (start == std::string_view::npos) return {};
  const size_t from = start + begin.size(), stop = text.find(end, from);
  if (stop == std::string_view::npos) return {};
  at = stop + end.size();
  return text.substr(from, stop - from);
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return {};
  return value;
}

/// Sets element `axis`, and all missing elements before it to `other`.
void put(std::vector<int64_t>& list, int64_t axis, int64_t value, int64_t other) {
  constexpr int64_t most_axes = 64;
  if (axis < 0 || axis >= most_axes) return;
  if (list.size() <= static_cast<size_t>(axis)) list.resize(static_cast<size_t>(axis) + 1, other);
  list[static_cast<size_t>(axis)] = value;
}

std::vector<std::string> names(std::string_view source, const std::string& list) {
  std::vector<std::string> found;
  for (size_t at = 0;;) {
    const auto name = between(source, list + "[" + std::to_string(found.size()) + "].name = \"", "\"", at);
    if (!name) return found;
    found.emplace_back(*name);
  }
}

/// Returns the body of the function that checks one input.
std::string_view check_of(std::string_view source, size_t input) {
  size_t at = 0;
  const auto body = between(source, "static void check_input_" + std::to_string(input) + "(", "\n}\n", at);
  return body ? *body : "";
}

/// Reads a condition, such as `8 != arg0_1_size[1]` or `arg0_1_size[0] < 2`.
void read_condition(std::string_view condition, PackageInput& input) {
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  const bool of_size = condition.find("_size[") != std::string_view::npos;
  const size_t bracket = condition.find('[');
  if (bracket == std::string_view::npos) return;
  const auto axis = number(condition.substr(bracket + 1));
  if (!axis) return;
  if (const auto fixed = number(condition); fixed && condition.find(" != ") != std::string_view::npos) {
    put(of_size ? input.info.sizes : input.strides, *axis, *fixed, -1);
    return;
  }
  const size_t less = condition.find(" < "), more = condition.find(" > ");
  const size_t sign = std::min(less, more);
  if (!of_size || sign == std::string_view::npos) return;
  const auto bound = number(condition.substr(sign + 3));
  if (!bound) return;
  put(input.info.sizes, *axis, -1, -1);
  if (less != std::string_view::npos)
    put(input.least, *axis, *bound, 0);
  else
    put(input.most, *axis, *bound, none);
}

PackageInput input_of(std::string_view body) {
  PackageInput input;
  input.info.dtype = c10::ScalarType::Undefined;
  size_t at = 0;
  if (const auto dtype = between(body, "_expected_dtype = aoti_torch_dtype_", "()", at)) {
    for (const auto& [name, value] : dtype_names) {
      if (name == *dtype) input.info.dtype = value;
    }
  }
  while (const auto condition = between(body, "if (", ") {", at)) read_condition(*condition, input);
  const size_t axes = std::max(input.info.sizes.size(), input.strides.size());
  input.info.sizes.resize(axes, -1);
  input.strides.resize(axes, -1);
  input.least.resize(axes, 0);
  input.most.resize(axes, std::numeric_limits<int64_t>::max());
  return input;
}

bool has_strides(const at::Tensor& tensor, const std::vector<int64_t>& strides) {
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    const int64_t expected = strides[static_cast<size_t>(axis)];
    if (expected >= 0 && tensor.size(axis) > 1 && tensor.stride(axis) != expected) return false;
  }
  return true;
}

}  // namespace

std::vector<PackageInput> package_inputs(std::string_view source) {
  std::vector<PackageInput> inputs;
  for (const std::string& name : names(source, "inputs_info_")) {
    PackageInput input = input_of(check_of(source, inputs.size()));
    input.info.name = name;
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<std::string> package_outputs(std::string_view source) {
  return names(source, "outputs_info_");
}

at::Tensor with_strides_of(const PackageInput& input, const at::Tensor& tensor, const std::string& model) {
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    TORCH_CHECK_VALUE(tensor.size(axis) >= input.least[i] && tensor.size(axis) <= input.most[i], model, ": input \"",
                      input.info.name, "\": axis ", axis, " must have ", input.least[i], " to ", input.most[i],
                      " elements, got ", tensor.size(axis), ". The package was compiled for this range.");
  }
  // Strides that may vary are those of a row-major tensor.
  const bool any = std::ranges::find(input.strides, -1) != input.strides.end();
  if (has_strides(tensor, input.strides) && (!any || tensor.is_contiguous())) return tensor;
  const at::Tensor row_major = tensor.contiguous();
  if (has_strides(row_major, input.strides)) return row_major;
  if (tensor.dim() == 4) {
    const at::Tensor channels_last = tensor.contiguous(at::MemoryFormat::ChannelsLast);
    if (has_strides(channels_last, input.strides)) return channels_last;
  }
  TORCH_CHECK_VALUE(false, model, ": input \"", input.info.name, "\": the package was compiled for strides ",
                    at::IntArrayRef(input.strides), ", which no memory format has for sizes ", tensor.sizes(),
                    ". Compile it for a row-major example.");
}

}  // namespace bellows::runtime
