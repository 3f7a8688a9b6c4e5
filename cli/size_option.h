#pragma once

#include <cstdint>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace bellows::cli {

/// Adds an option for a number of bytes: 5000000, 256MB, 1.5GB, 1e9; units are powers of 1024.
CLI::Option* add_size(CLI::App* verb, const char* name, uint64_t& bytes, const char* what);

}  // namespace bellows::cli
