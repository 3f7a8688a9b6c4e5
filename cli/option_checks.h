#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/options.h"

namespace bellows::cli {

// Each function checks the text of an option. It returns "" if the text is valid, and otherwise what was expected.
std::string number_problem(const std::string& text, double most, const char* expected, bool zero = false);
std::string share_problem(const std::string& text);
std::string seconds_problem(const std::string& text);
std::string positive_problem(const std::string& text);
std::string points_problem(const std::string& text);
std::string dtype_problem(const std::string& text);

/// Accepts integers from `low` to `high`.
CLI::Validator whole_number(int64_t low, int64_t high);

/// The options that follow have this title in the help.
void begin_group(CLI::App* verb, const char* title);

/// Adds --json.
void add_json(CLI::App* verb, JsonTarget& json);

}  // namespace bellows::cli
