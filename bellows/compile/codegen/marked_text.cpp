#include "bellows/compile/codegen/marked_text.h"

#include <c10/util/StringUtil.h>

namespace bellows::compile_detail {
namespace {

// A number is between two equal marks. A single mark is a placeholder.
constexpr char size_mark = '\1', float_mark = '\2', double_mark = '\3';

bool is_mark(char c) {
  return c == size_mark || c == float_mark || c == double_mark;
}

/// Whether the compiler chooses the order in which numbers are added.
bool has_vector_sums(const std::string& text) {
  return text.find("reduction(+") != std::string::npos || text.find("reduction(*") != std::string::npos;
}

/// Declares a size. The compiler may add numbers in another order if a size is a literal. In functions with sums, it
/// therefore does not see whether a size is a literal.
std::string declaration(size_t size, const std::string& value, bool hidden) {
  const std::string name = c10::str("d", size);
  if (!hidden) return c10::str("const i64 ", name, " = ", value, ";\n");
  return c10::str("i64 ", name, " = ", value, ";\n__asm__(\"\" : \"+r\"(", name, "));\n");
}

}  // namespace

std::string marked_size(int64_t size) {
  const std::string text = std::to_string(size);
  return size == 0 || size == 1 ? text : size_mark + text + size_mark;
}

std::string marked_constant(const std::string& literal, c10::ScalarType type) {
  const char mark = type == c10::kDouble ? double_mark : float_mark;
  return mark + literal + mark;
}

MarkedText MarkedText::of(const std::string& text) {
  MarkedText made;
  for (size_t at = 0; at < text.size(); ++at) {
    made.skeleton += text[at];
    if (!is_mark(text[at])) continue;
    const size_t end = text.find(text[at], at + 1);
    const std::string number = text.substr(at + 1, end - at - 1);
    if (text[at] == size_mark)
      made.sizes.push_back(std::stoll(number));
    else
      made.constants.push_back(number);
    at = end;
  }
  return made;
}

std::string MarkedText::code(const std::vector<bool>& size_varies, const std::vector<bool>& constant_varies) const {
  std::string declarations, body;
  size_t size = 0, constant = 0, sizes_read = 0, constants_read = 0;
  const bool hidden = has_vector_sums(skeleton);
  for (const char c : skeleton) {
    if (!is_mark(c)) {
      body += c;
    } else if (c == size_mark) {
      const bool varies = !size_varies.empty() && size_varies[size];
      const std::string value = varies ? c10::str("sizes[", sizes_read++, "]") : std::to_string(sizes[size]);
      body += varies || hidden ? c10::str("d", size) : value;
      if (varies || hidden) declarations += declaration(size, value, hidden);
      ++size;
    } else {
      const bool varies = !constant_varies.empty() && constant_varies[constant];
      const char* const type = c == double_mark ? "double" : "float";
      body += varies ? c10::str("k", constant) : constants[constant];
      if (varies)
        declarations += c10::str("const ", type, " k", constant, " = (", type, ")constants[", constants_read++, "];\n");
      ++constant;
    }
  }
  return declarations + body;
}

}  // namespace bellows::compile_detail
