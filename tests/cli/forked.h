#pragma once

#include <ATen/Parallel.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "process.h"

namespace bellows::cli {

/// Runs the command in a copy of this process. It is faster than run_bellows(), because loading libtorch takes most of
/// the time of a short command. For commands that do not train, measure or start processes.
inline Outcome run_forked(std::vector<std::string> arguments) {
  const auto command = [](int argc, char** argv) {
    at::set_num_threads(1);                // the copy does not have the threads of this process
    setenv("GOMP_SPINCOUNT", "20000", 0);  // the command would otherwise restart the program
    return run(argc, argv);
  };
  return Process({.arguments = std::move(arguments), .copy = command}).finish();
}

}  // namespace bellows::cli
