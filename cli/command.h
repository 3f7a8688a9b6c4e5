#pragma once

namespace bellows::cli {

/// Runs the `bellows` command. Your own program can register its models (BELLOWS_MODEL) and then call this function.
/// Returns: the exit code of the process: 0 for success, 1 for a failure, 2 for a usage error, 128 + the number of the
///          signal if a signal stopped the command (130 after Ctrl-C)
int run(int argc, char** argv);

}  // namespace bellows::cli
