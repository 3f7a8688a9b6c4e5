#include "bellows/models/exported/program.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

void exported_program(io::ByteSpan bytes) {
  rejecting([&] { const models::exported::ExportedProgram program(io::as_text(bytes), "fuzz"); });
}

}  // namespace bellows::fuzz
