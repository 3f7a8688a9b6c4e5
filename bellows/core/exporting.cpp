#include "bellows/core/exporting.h"

namespace bellows {

namespace {
thread_local bool exporting = false;
}

bool is_exporting() {
  return exporting;
}

ExportingGuard::ExportingGuard() : previous_(exporting) {
  exporting = true;
}
ExportingGuard::~ExportingGuard() {
  exporting = previous_;
}

}  // namespace bellows
