#include "cli/command.h"
#include "cli/interrupt.h"

int main(int argc, char** argv) {
  bellows::cli::end_on_signals();
  return bellows::cli::run(argc, argv);
}
