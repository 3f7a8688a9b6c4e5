#include "cli/option_checks.h"

#include <c10/util/StringUtil.h>

#include <cstdlib>

namespace bellows::cli {

/// CLI11's Range lets NaN through.
std::string number_problem(const std::string& text, double most, const char* expected, bool zero) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool enough = zero ? number >= 0 : number > 0;
  if (end != text.c_str() && *end == '\0' && enough && number <= most) return "";
  return std::string("expected ") + expected + ", got " + text;
}

std::string share_problem(const std::string& text) {
  return number_problem(text, 1, "a number above 0 and at most 1, such as 0.97");
}

std::string seconds_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number of seconds above 0, such as 300");
}

std::string positive_problem(const std::string& text) {
  return number_problem(text, 1e9, "a number above 0 and at most 10^9");
}

std::string points_problem(const std::string& text) {
  return number_problem(text, 100, "a number of points from 0 to 100, such as 0.5", /*zero=*/true);
}

std::string dtype_problem(const std::string& text) {
  return text == "fp32" || text == "bf16" ? "" : "expected fp32 or bf16, got " + text;
}

CLI::Validator whole_number(int64_t low, int64_t high) {
  const auto problem = [low, high](const std::string& text) {
    int64_t number = 0;
    if (CLI::detail::lexical_cast(text, number) && number >= low && number <= high) return std::string();
    return c10::str("expected an integer ", high == INT64_MAX ? "of at least " : "from ", low,
                    high == INT64_MAX ? "" : c10::str(" to ", high), ", got ", text);
  };
  return {problem, ""};
}

void begin_group(CLI::App* verb, const char* title) {
  verb->option_defaults()->group(title);
}

void add_json(CLI::App* verb, JsonTarget& json) {
  verb->add_option("--json", json, "Write the result as JSON to FILE, or to standard output if FILE is omitted")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
}

}  // namespace bellows::cli
