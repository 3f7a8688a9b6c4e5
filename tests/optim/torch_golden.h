#pragma once

#include "bellows/io/tensors/safetensors.h"

namespace bellows::optim {

/// A file of tests/goldens/optim, which tools/goldens/schedule.py writes. Throws if it is missing.
inline io::SafetensorsFile open_golden(const std::string& file) {
  return io::SafetensorsFile(BELLOWS_SOURCE_DIR "/tests/goldens/optim/" + file);
}

}  // namespace bellows::optim
