#include "cli/size_option.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace bellows::cli {

namespace {

std::string size_problem(const std::string& size) {
  return "expected a size from 1 byte to 10^18 bytes, such as 256MB, got " + size;
}

/// CLI11 would read a negative number as one of 20 digits.
std::string negative_size_problem(const std::string& size) {
  return size.find('-') == std::string::npos ? "" : size_problem(size);
}

std::string shard_size_problem(const std::string& bytes) {
  return bytes != "0" && bytes.size() < 19 ? "" : size_problem(bytes + " bytes");
}

/// Converts "1.5GB" and "1e9" to bytes: CLI11 reads whole numbers only, and its errors list all units.
std::string in_bytes(std::string& size) {
  char* end = nullptr;
  const double number = std::strtod(size.c_str(), &end);
  if (end == size.c_str()) return size_problem(size);
  std::string unit = std::string("1") + end;
  try {
    CLI::AsSizeValue(false)(unit);
  } catch (const CLI::ValidationError&) {
    return size_problem(size);
  }
  if (size.find_first_of(".eE") == std::string::npos) return "";
  const double bytes = number * std::stod(unit);
  if (!(bytes >= 1 && bytes <= 1e18)) return size_problem(size);
  size = std::to_string(std::llround(bytes));
  return "";
}

}  // namespace

CLI::Option* add_size(CLI::App* verb, const char* name, uint64_t& bytes, const char* what) {
  return verb->add_option(name, bytes, what)
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->transform(CLI::Validator(in_bytes, ""))  // runs before the one above, like the next one
      ->transform(CLI::Validator(negative_size_problem, ""))
      ->check(CLI::Validator(shard_size_problem, ""));
}

}  // namespace bellows::cli
