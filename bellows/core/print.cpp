#include "bellows/core/print.h"

#include <ATen/ops/cat.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <vector>

#include "bellows/core/mutex.h"

namespace bellows {

namespace {

constexpr int64_t most_digits = 100;

void check_options(const PrintOptions& options) {
  TORCH_CHECK_VALUE(options.precision >= 0 && options.precision <= most_digits,
                    "print options: expected a precision from 0 to ", most_digits, ", got ", options.precision, ".");
  TORCH_CHECK_VALUE(options.threshold >= 0, "print options: expected a threshold of at least 0, got ",
                    options.threshold, ".");
  TORCH_CHECK_VALUE(options.edgeitems >= 0, "print options: expected edgeitems of at least 0, got ", options.edgeitems,
                    ".");
  TORCH_CHECK_VALUE(options.linewidth >= 1, "print options: expected a linewidth of at least 1, got ",
                    options.linewidth, ".");
}

/// The options of the process.
struct CurrentOptions {
  Mutex mutex;
  PrintOptions options BELLOWS_GUARDED_BY(mutex);
};

CurrentOptions& current() {
  static CurrentOptions options;
  return options;
}

std::string number_text(const char* format, int precision, double value) {
  if (std::isnan(value)) return "nan";  // without a sign, as Python writes it
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 320 + most_digits> text{};
  std::snprintf(text.data(), text.size(), format, precision, value);
  return text.data();
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

/// Writes numbers of one tensor with the same notation and width.
class NumberFormat {
 public:
  NumberFormat(std::span<const double> values, const PrintOptions& options)
      : precision_(static_cast<int>(options.precision)) {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const double value : values) {
      if (!counts(value)) continue;
      least = std::min(least, std::abs(value));
      most = std::max(most, std::abs(value));
      whole_ = whole_ && value == std::ceil(value);
    }
    if (most == 0) return;
    scientific_ = options.sci_mode.value_or(most / least > 1000.0 || most > 1.0e8 || least < 1.0e-4);
    for (const double value : values) {
      if (counts(value)) width_ = std::max(width_, bare(value).size());
    }
  }

  std::string text(double value) const { return padded(bare(value), width_); }
  size_t width() const { return width_; }

 private:
  static bool counts(double value) { return std::isfinite(value) && value != 0; }
  std::string bare(double value) const {
    if (scientific_) return number_text("%.*e", precision_, value);
    if (!whole_) return number_text("%.*f", precision_, value);
    return number_text("%.*f", 0, value) + (std::isfinite(value) ? "." : "");
  }

  int precision_;
  bool whole_ = true, scientific_ = false;
  size_t width_ = 1;
};

/// The texts of elements, and the width that a line reserves for each.
struct ElementTexts {
  std::vector<std::string> texts;
  size_t width = 1;
};

ElementTexts real_texts(const at::Tensor& elements, const PrintOptions& options) {
  const at::Tensor values = elements.to(at::kDouble).contiguous();
  const std::span<const double> numbers(values.const_data_ptr<double>(), static_cast<size_t>(values.numel()));
  const NumberFormat format(numbers, options);
  ElementTexts result{.width = format.width()};
  result.texts.reserve(numbers.size());
  for (const double number : numbers) result.texts.push_back(format.text(number));
  return result;
}

ElementTexts complex_texts(const at::Tensor& elements, const PrintOptions& options) {
  const at::Tensor values = elements.to(at::kComplexDouble).contiguous();
  const auto* numbers = values.const_data_ptr<c10::complex<double>>();
  const auto count = static_cast<size_t>(values.numel());
  std::vector<double> real(count), imaginary(count);
  for (size_t i = 0; i < count; ++i) {
    real[i] = numbers[i].real();
    imaginary[i] = numbers[i].imag();
  }
  const NumberFormat first(real, options), second(imaginary, options);
  ElementTexts result{.width = first.width() + second.width() + 1};
  result.texts.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    std::string part = second.text(imaginary[i]) + "j";
    part.erase(0, part.find_first_not_of(' '));
    result.texts.push_back(first.text(real[i]) + (part[0] == '-' ? "" : "+") + part);
  }
  return result;
}

template <class T, class ToText>
ElementTexts whole_texts(const at::Tensor& elements, const ToText& to_text) {
  const at::Tensor values = elements.contiguous();
  const T* numbers = values.const_data_ptr<T>();
  ElementTexts result;
  result.texts.reserve(static_cast<size_t>(values.numel()));
  for (int64_t i = 0; i < values.numel(); ++i) {
    result.texts.push_back(to_text(numbers[i]));
    result.width = std::max(result.width, result.texts.back().size());
  }
  for (std::string& text : result.texts) text = padded(std::move(text), result.width);
  return result;
}

ElementTexts texts_of(const at::Tensor& elements, const PrintOptions& options) {
  const c10::ScalarType dtype = elements.scalar_type();
  if (c10::isComplexType(dtype)) return complex_texts(elements, options);
  if (c10::isFloatingType(dtype)) return real_texts(elements, options);
  if (dtype == at::kBool) return whole_texts<bool>(elements, [](bool value) { return value ? "True" : "False"; });
  if (dtype == c10::ScalarType::UInt64)
    return whole_texts<uint64_t>(elements, [](uint64_t value) { return std::to_string(value); });
  return whole_texts<int64_t>(elements.to(at::kLong), [](int64_t value) { return std::to_string(value); });
}

/// Writes the elements in brackets.
class TensorText {
 public:
  TensorText(const at::Tensor& tensor, const PrintOptions& options, int64_t indent)
      : options_(options), summarized_(tensor.numel() > options.threshold) {
    at::Tensor shown = tensor;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      const int64_t size = tensor.size(dim), edge = options.edgeitems;
      const bool cut = summarized_ && size > 2 * edge;
      cut_.push_back(cut);
      if (cut && edge > 0) shown = at::cat({shown.narrow(dim, 0, edge), shown.narrow(dim, size - edge, edge)}, dim);
    }
    sizes_ = shown.sizes().vec();
    const bool empty = summarized_ && options.edgeitems == 0 && tensor.dim() > 0;
    if (!empty) elements_ = texts_of(shown.cpu().resolve_conj().resolve_neg(), options);
    text_ = part(0, indent);
  }

  const std::string& text() const { return text_; }

 private:
  std::string part(size_t dim, int64_t indent) {
    if (dim == sizes_.size()) return elements_.texts[next_++];
    if (summarized_ && options_.edgeitems == 0) return "[...]";
    if (dim + 1 == sizes_.size()) return vector(indent);
    const size_t newlines = sizes_.size() - dim - 1;
    const std::string separator = "," + std::string(newlines, '\n') + std::string(static_cast<size_t>(indent) + 1, ' ');
    std::string text = "[";
    for (int64_t i = 0; i < sizes_[dim]; ++i) {
      if (i > 0) text += separator;
      if (cut_[dim] && i == options_.edgeitems) text += "..." + separator;
      text += part(dim + 1, indent + 1);
    }
    return text + "]";
  }

  std::string vector(int64_t indent) {
    const int64_t width = static_cast<int64_t>(elements_.width) + 2;
    const int64_t per_line = std::max<int64_t>(1, (options_.linewidth - indent) / width);
    std::string text = "[";
    int64_t written = 0;
    const auto add = [&](const std::string& element) {
      if (written > 0)
        text += written % per_line == 0 ? ",\n" + std::string(static_cast<size_t>(indent) + 1, ' ') : std::string(", ");
      text += element;
      ++written;
    };
    for (int64_t i = 0; i < sizes_.back(); ++i) {
      if (cut_.back() && i == options_.edgeitems) add(" ...");
      add(elements_.texts[next_++]);
    }
    return text + "]";
  }

  const PrintOptions& options_;
  const bool summarized_;
  std::vector<bool> cut_;       // per dimension: the middle is left out
  std::vector<int64_t> sizes_;  // of the elements that are written
  ElementTexts elements_;
  size_t next_ = 0;
  std::string text_;
};

std::string tuple_text(at::IntArrayRef sizes) {
  if (sizes.size() == 1) return "(" + std::to_string(sizes[0]) + ",)";
  return c10::str("(", c10::Join(", ", sizes), ")");
}

std::string dtype_text(c10::ScalarType dtype) {
  return "torch." + c10::getDtypeNames(dtype).first;
}

bool is_default_dtype(c10::ScalarType dtype) {
  const c10::ScalarType real = c10::get_default_dtype_as_scalartype();
  const c10::ScalarType complex = real == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  return dtype == real || dtype == complex || dtype == at::kLong || dtype == at::kBool;
}

std::vector<std::string> suffixes_of(const at::Tensor& tensor, const PrintOptions& options) {
  std::vector<std::string> suffixes;
  if (!tensor.is_cpu()) suffixes.push_back("device='" + tensor.device().str() + "'");
  const bool empty = tensor.numel() == 0 || tensor.is_meta();
  if (tensor.is_meta() || (empty && tensor.dim() != 1) || (!empty && options.edgeitems == 0))
    suffixes.push_back("size=" + tuple_text(tensor.sizes()));
  const c10::ScalarType dtype = tensor.scalar_type();
  // No element of an empty tensor shows whether it has integers.
  if (empty ? dtype != c10::get_default_dtype_as_scalartype() : !is_default_dtype(dtype))
    suffixes.push_back("dtype=" + dtype_text(dtype));
  if (const auto grad_fn = tensor.grad_fn()) {
    const std::string name = grad_fn->name();
    const size_t colon = name.rfind(':');
    suffixes.push_back("grad_fn=<" + (colon == std::string::npos ? name : name.substr(colon + 1)) + ">");
  } else if (tensor.requires_grad()) {
    suffixes.emplace_back("requires_grad=True");
  }
  return suffixes;
}

std::string with_suffixes(std::string text, const std::vector<std::string>& suffixes, size_t indent, size_t linewidth) {
  const size_t newline = text.rfind('\n');
  size_t length = newline == std::string::npos ? text.size() + 2 : text.size() - newline + 1;
  for (const std::string& suffix : suffixes) {
    const bool wraps = length + suffix.size() + 2 > linewidth;
    text += wraps ? ",\n" + std::string(indent, ' ') : std::string(", ");
    text += suffix;
    length = wraps ? indent + suffix.size() : length + suffix.size() + 2;
  }
  return text + ")";
}

void check_printable(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!tensor.is_nested(), "to_text: expected a dense tensor, got a nested one. Use to_padded_tensor().");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "to_text: expected a dense tensor, got the layout ",
                    tensor.layout(), ". Use to_dense().");
  TORCH_CHECK_VALUE(!tensor.is_quantized(), "to_text: expected a tensor without quantization, got ",
                    tensor.scalar_type(), ". Use dequantize().");
  const c10::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK_VALUE(c10::isIntegralType(dtype, /*includeBool=*/true) || c10::isComplexType(dtype) ||
                        (c10::isFloatingType(dtype) && dtype != c10::ScalarType::Float4_e2m1fn_x2),
                    "to_text: expected a tensor of numbers, got ", dtype, ".");
}

}  // namespace

PrintOptions print_profile(std::string_view name) {
  if (name == "default") return {};
  if (name == "short") return {.precision = 2};
  TORCH_CHECK_VALUE(name == "full", "print_profile: expected default, short or full, got \"", name, "\".");
  return {.threshold = std::numeric_limits<int64_t>::max()};
}

void set_print_options(const PrintOptions& options) {
  check_options(options);
  const MutexLock lock(current().mutex);
  current().options = options;
}

PrintOptions print_options() {
  const MutexLock lock(current().mutex);
  return current().options;
}

std::string to_text(const at::Tensor& tensor, const PrintOptions& options) {
  check_options(options);
  if (!tensor.defined()) return "tensor(undefined)";
  check_printable(tensor);
  constexpr std::string_view prefix = "tensor(";
  std::string text(prefix);
  if (tensor.is_meta()) {
    text += "...";
  } else if (tensor.numel() == 0) {
    text += "[]";
  } else {
    text += TensorText(tensor.detach(), options, static_cast<int64_t>(prefix.size())).text();
  }
  return with_suffixes(std::move(text), suffixes_of(tensor, options), prefix.size(),
                       static_cast<size_t>(options.linewidth));
}

std::string to_text(const at::Tensor& tensor) {
  return to_text(tensor, print_options());
}

}  // namespace bellows
