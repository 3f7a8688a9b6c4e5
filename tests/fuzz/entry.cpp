#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bellows::fuzz::BELLOWS_FUZZ_TARGET({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
