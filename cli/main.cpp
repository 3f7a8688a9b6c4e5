#include "cli/command.h"

int main(int argc, char** argv) {
  return bellows::cli::run(argc, argv);
}
