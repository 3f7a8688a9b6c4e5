#pragma once

#include <cstdint>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace bellows::cli {

/// Adds an option for a number of bytes to a verb. Examples of values are 5000000, 256MB, 1.5GB and 1e9. Units are
/// powers of 1024.
/// Params: what – description of the option for `--help`
CLI::Option* add_size(CLI::App* verb, const char* name, uint64_t& bytes, const char* what);

}  // namespace bellows::cli
