#include "bellows/compile/codegen/marked_text.h"

#include <c10/util/StringUtil.h>

namespace bellows::compile_detail {
namespace {

// A number is between two equal marks. A single mark is a placeholder.
constexpr char size_mark = '\1', float_mark = '\2', double_mark = '\3';

bool is_mark(char c) {
  return c == size_mark || c == float_mark || c == double_mark;
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
  for (const char c : skeleton) {
    if (!is_mark(c)) {
      body += c;
    } else if (c == size_mark) {
      const bool varies = !size_varies.empty() && size_varies[size];
      body += varies ? c10::str("d", size) : std::to_string(sizes[size]);
      if (varies) declarations += c10::str("const i64 d", size, " = sizes[", sizes_read++, "];\n");
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
