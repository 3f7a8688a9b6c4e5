#pragma once

#include <string>

#include "bellows/io/archives/decompress.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// What FFCV wrote, unpacked: a file of tests/goldens/interop/beton.
inline Bytes beton_golden(const std::string& name) {
  const MappedFile packed(BELLOWS_SOURCE_DIR "/tests/goldens/interop/beton/" + name + ".beton.gz");
  return decompress(packed.bytes(), packed.path());
}

}  // namespace bellows::io
