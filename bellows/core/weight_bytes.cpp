#include "bellows/core/weight_bytes.h"

#include <c10/core/StorageImpl.h>

#include <set>
#include <utility>

namespace bellows {

int64_t weight_bytes(const Model& model) {
  std::set<std::pair<const c10::StorageImpl*, int64_t>> seen;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.state_dict()) {
    if (!tensor.defined()) continue;
    // Not the address of the data, which is null on the meta device.
    const bool first =
        !tensor.has_storage() || seen.emplace(tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset()).second;
    if (first) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace bellows
