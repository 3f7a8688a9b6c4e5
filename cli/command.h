#pragma once

namespace bellows::cli {

/// The `bellows` command. A program of the user's own registers its models, then calls this.
/// Returns: the exit code: 0 done, 1 failed, 2 wrong use, 128 + signal after an orderly stop (130: Ctrl-C)
int run(int argc, char** argv);

}  // namespace bellows::cli
