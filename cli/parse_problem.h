#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace bellows::cli {

/// The message for a command line that CLI11 rejected. `verb`: the command on that line, such as `bellows train`.
std::string parse_problem(const CLI::ParseError& error, const CLI::App& verb);

}  // namespace bellows::cli
