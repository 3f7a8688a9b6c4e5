#include "bellows/models/exported/input_checks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bellows/io/tables/json_impl.h"

namespace bellows::models::exported {

namespace {

constexpr int64_t kLargestSize = int64_t{1} << 40;
constexpr size_t kNoSymbol = SIZE_MAX;

std::string size_path(const ExportedInput& input, size_t dimension) {
  return input.path + ".size()[" + std::to_string(dimension) + "]";
}

std::optional<int64_t> limit_of(const Json& value) {
  if (value.is_null()) return std::nullopt;
  TORCH_CHECK_VALUE(value.is_number(), "range_constraints: expected a number or null, found ", io::shown_json(value),
                    ".");
  if (value.is_number_unsigned() && value > INT64_MAX) return std::nullopt;
  if (value.is_number_float()) return std::nullopt;  // infinite
  return value.get<int64_t>();
}

/// Returns whether the input is a Python integer, or a constant that is one.
bool is_integer_input(const ExportedInput& input) {
  return !input.is_tensor && (!input.sizes.empty() || input.constant.isInt() || input.constant.isBool());
}

int64_t size_at(const c10::IValue& value, size_t dimension) {
  if (value.isTensor()) return value.toTensor().size(static_cast<int64_t>(dimension));
  return value.toScalar().toLong();
}

}  // namespace

InputChecks::InputChecks(std::vector<ExportedInput> inputs, SizeNames names, const Json& ranges, const Json& guards)
    : inputs_(std::move(inputs)), names_(std::move(names)) {
  for (const ExportedInput& input : inputs_) {
    for (size_t i = 0; i < input.sizes.size() && input.is_tensor; ++i) names_.add(size_path(input, i));
    names_.add(input.path);
  }
  known_.assign(names_.size(), false);
  for (const ExportedInput& input : inputs_) {
    for (size_t i = 0; i < input.sizes.size() && input.is_tensor; ++i) known_[*names_.find(size_path(input, i))] = true;
    known_[*names_.find(input.path)] = !input.is_tensor && is_integer_input(input);
  }
  order_forms();
  for (const auto& [size, range] : ranges.items()) add_range(size, range);
  for (const Json& guard : guards) add_guard(guard.get<std::string>());
}

bool InputChecks::all_known(const SizeExpression& expression) const {
  return std::all_of(expression.names().begin(), expression.names().end(),
                     [&](size_t name) { return name < known_.size() && known_[name]; });
}

/// Sizes that are a single symbol come first. A symbol that occurs only inside a larger expression is solved for.
void InputChecks::order_forms() {
  std::vector<Form> open;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (size_t k = 0; k < inputs_[i].sizes.size(); ++k) {
      if (inputs_[i].sizes[k].form) open.push_back({i, k});
    }
  }
  std::stable_sort(open.begin(), open.end(),
                   [&](const Form& a, const Form& b) { return form_of(a).text().size() < form_of(b).text().size(); });
  for (bool progress = true; progress;) {
    progress = false;
    std::vector<Form> rest;
    for (Form& form : open) {
      std::vector<size_t> unknown;
      for (const size_t name : form_of(form).names()) {
        if (!known_[name]) unknown.push_back(name);
      }
      if (unknown.size() > 1) {
        rest.push_back(form);
        continue;
      }
      if (!unknown.empty()) {
        form.solves_for = unknown[0];
        known_[unknown[0]] = true;
      }
      forms_.push_back(form);
      progress = true;
    }
    open = std::move(rest);
  }
  for (const Form& form : open) unchecked_.push_back(form_of(form).text());
}

/// Ranges of sizes that the program computes itself are checked by its operators.
void InputChecks::add_range(const std::string& size, const Json& range) {
  try {
    SizeExpression expression = SizeExpression::parse(size, names_);
    if (!all_known(expression)) return;
    ranges_.push_back({std::move(expression), limit_of(range.at("min_val")), limit_of(range.at("max_val"))});
  } catch (const UnsupportedExpression&) {
    unchecked_.push_back(size);
  }
}

void InputChecks::add_guard(const std::string& text) {
  try {
    SizeExpression expression = SizeExpression::parse(text, names_);
    if (all_known(expression)) {
      guards_.push_back(std::move(expression));
    } else {
      unchecked_.push_back(text);
    }
  } catch (const UnsupportedExpression&) {
    unchecked_.push_back(text);
  }
}

std::string InputChecks::place_of(const Form& form) const {
  const ExportedInput& input = inputs_[form.input];
  if (!input.is_tensor) return c10::str("input \"", input.name, "\"");
  return c10::str("input \"", input.name, "\", dimension ", form.dimension);
}

std::string InputChecks::place_of_symbol(size_t symbol) const {
  for (const Form& form : forms_) {
    if (form.solves_for == symbol) return place_of(form);
  }
  return "a size";
}

c10::IValue InputChecks::value_of(const ExportedInput& input, const at::Tensor& tensor) const {
  if (!tensor.defined()) {
    TORCH_CHECK_VALUE(input.is_constant, "input \"", input.name, "\" is missing.");
    return input.constant;
  }
  if (input.is_tensor) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == input.dtype, "input \"", input.name, "\": expected ", input.dtype,
                      ", got ", tensor.scalar_type(), ".");
    TORCH_CHECK_VALUE(static_cast<size_t>(tensor.dim()) == input.sizes.size(), "input \"", input.name, "\": expected ",
                      input.sizes.size(), " dimensions, got the shape ", tensor.sizes(), ".");
    return tensor;
  }
  TORCH_CHECK_VALUE(tensor.numel() == 1, "input \"", input.name,
                    "\": expected a tensor with one number, got the shape ", tensor.sizes(), ".");
  const c10::IValue number(tensor.item());
  if (!input.is_constant) return number;
  const bool same = !input.constant.isNone() && number.toScalar().toDouble() == input.constant.toScalar().toDouble();
  TORCH_CHECK_VALUE(same, "input \"", input.name, "\": the program was exported with the constant ",
                    input.constant_text, ", got ", number.toScalar().toDouble(),
                    ". Omit this input, or export the model again.");
  return input.constant;
}

void InputChecks::set_sizes(const ExportedInput& input, const c10::IValue& value, SizeValues& sizes) const {
  if (!input.is_tensor) {
    if (!is_integer_input(input)) return;
    TORCH_CHECK_VALUE(!value.isDouble(), "input \"", input.name, "\": expected an integer, got ", value.toDouble(),
                      ".");
    const int64_t number = value.toScalar().toLong();
    TORCH_CHECK_VALUE(input.sizes.empty() || input.sizes[0].fixed < 0 || input.sizes[0].fixed == number, "input \"",
                      input.name, "\": the program was exported with ", input.sizes[0].fixed, ", got ", number, ".");
    sizes[*names_.find(input.path)] = number;
    return;
  }
  for (size_t i = 0; i < input.sizes.size(); ++i) {
    const int64_t size = size_at(value, i), fixed = input.sizes[i].fixed;
    TORCH_CHECK_VALUE(fixed < 0 || size == fixed, "input \"", input.name, "\", dimension ", i,
                      ": the program was "
                      "exported with the fixed size ",
                      fixed, ", got ", size, ". Export it with `dynamic_shapes` for this dimension.");
    sizes[*names_.find(size_path(input, i))] = size;
  }
}

/// Sizes grow or shrink with the symbol, so that bisection finds it.
void InputChecks::solve(const Form& form, int64_t size, SizeValues& sizes) const {
  const SizeExpression& expression = form_of(form);
  std::optional<int64_t>& symbol = sizes[form.solves_for];
  const auto value_for = [&](int64_t candidate) {
    symbol = candidate;
    try {
      return expression.value(sizes);
    } catch (const c10::ValueError&) {
      return INT64_MAX;  // too large
    }
  };
  const bool grows = value_for(1 << 10) >= value_for(1);
  int64_t low = 0, high = kLargestSize;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2, found = value_for(middle);
    if (grows ? found >= size : found <= size) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int64_t nearest = value_for(low);
  TORCH_CHECK_VALUE(nearest == size, place_of(form), ": the size ", size, " does not have the exported form ",
                    expression.text(), ". The nearest possible size is ", nearest, ".");
}

void InputChecks::check_forms(const std::vector<c10::IValue>& values, SizeValues& sizes) const {
  for (const Form& form : forms_) {
    const int64_t size = size_at(values[form.input], form.dimension);
    if (form.solves_for != kNoSymbol) {
      solve(form, size, sizes);
      continue;
    }
    const int64_t expected = form_of(form).value(sizes);
    TORCH_CHECK_VALUE(size == expected, place_of(form), ": expected the size ", expected, " (", form_of(form).text(),
                      ", from the other sizes), got ", size, ".");
  }
}

void InputChecks::check_ranges(const SizeValues& sizes) const {
  for (const Range& range : ranges_) {
    const int64_t size = range.size.value(sizes);
    const bool inside = (!range.least || size >= *range.least) && (!range.most || size <= *range.most);
    TORCH_CHECK_VALUE(inside, range.size.names().size() == 1 ? place_of_symbol(range.size.names()[0]) : "sizes", ": ",
                      range.size.text(), " is ", size, ", but the program was exported for ",
                      range.least ? c10::str("at least ", *range.least) : "", range.least && range.most ? " and " : "",
                      range.most ? c10::str("at most ", *range.most) : "", ".");
  }
}

void InputChecks::check_guards(const SizeValues& sizes) const {
  for (const SizeExpression& guard : guards_) {
    TORCH_CHECK_VALUE(guard.value(sizes) != 0, "the sizes of the inputs do not meet the condition ", guard.text(),
                      " with which the program was exported.");
  }
}

std::vector<c10::IValue> InputChecks::values(const std::vector<at::Tensor>& given) const {
  TORCH_CHECK_VALUE(given.size() <= inputs_.size(), "expected at most ", inputs_.size(), " inputs, got ", given.size(),
                    ".");
  std::vector<c10::IValue> values;
  values.reserve(inputs_.size());
  SizeValues sizes(names_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    values.push_back(value_of(inputs_[i], i < given.size() ? given[i] : at::Tensor()));
    set_sizes(inputs_[i], values.back(), sizes);
  }
  check_forms(values, sizes);
  check_ranges(sizes);
  check_guards(sizes);
  return values;
}

}  // namespace bellows::models::exported
