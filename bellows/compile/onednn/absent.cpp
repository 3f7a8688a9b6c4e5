// Replaces the other sources of this folder in builds without oneDNN.
#include "bellows/compile/onednn/onednn.h"

namespace bellows::compile_detail {

bool has_onednn() {
  return false;
}

bool adds_int8_exactly() {
  return false;
}

OnednnReport use_onednn(graph::Program&, bool) {
  return {};
}

std::vector<graph::Pass> passes_with_onednn() {
  return graph::passes();
}

std::string OnednnReport::to_text() const {
  return "oneDNN: not built in";
}

}  // namespace bellows::compile_detail
