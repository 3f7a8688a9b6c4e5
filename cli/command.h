#pragma once

namespace bellows::cli {

/// Runs the `bellows` command. A user's program registers its models, then calls this function.
/// Returns: the exit code: 0 done, 1 failed, 2 usage error, 128 + signal after an orderly stop (130: Ctrl-C)
int run(int argc, char** argv);

}  // namespace bellows::cli
