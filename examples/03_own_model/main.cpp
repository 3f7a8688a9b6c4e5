// The `bellows` command with a model of one's own inside: `mybellows train --model mynet --data …`.
#include <bellows/cli/command.h>

int main(int argc, char** argv) {
  return bellows::cli::run(argc, argv);
}
