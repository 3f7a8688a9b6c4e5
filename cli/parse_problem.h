#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace bellows::cli {

/// Returns the error message for a command line that CLI11 rejected.
/// Params: verb – the verb on this command line, such as `train`
std::string parse_problem(const CLI::ParseError& error, const CLI::App& verb);

}  // namespace bellows::cli
