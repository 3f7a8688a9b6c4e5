#include "bellows/compile/shared_constants.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace bellows::compile_detail {
namespace {

constexpr size_t least_bytes = 4096;  ///< smaller constants are not shared

bool same_bytes(const c10::StorageImpl& a, const c10::StorageImpl& b) {
  return a.nbytes() == b.nbytes() && (a.data() == b.data() || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

}  // namespace

uint64_t digest_of(const c10::Storage& storage) {
  constexpr size_t pieces = 64, piece_bytes = 16;
  const auto* const bytes = static_cast<const char*>(storage.data());
  const size_t step = (storage.nbytes() - piece_bytes) / pieces;
  uint64_t digest = storage.nbytes();
  for (size_t i = 0; i < pieces; ++i)
    digest = digest * 0x9E3779B97F4A7C15 + std::hash<std::string_view>()({bytes + i * step, piece_bytes});
  return digest;
}

size_t SharedConstants::share(graph::Program& program, std::span<const c10::Storage> of_caller) {
  std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
  size_t shared = 0;
  for (auto& constant : program.constants) {
    const c10::Storage& own = constant.tensor.storage();
    const bool is_caller_s = std::any_of(of_caller.begin(), of_caller.end(), [&](const c10::Storage& storage) {
      return storage.unsafeGetStorageImpl() == own.unsafeGetStorageImpl();
    });
    if (is_caller_s || !own.device().is_cpu() || own.nbytes() < least_bytes) continue;
    const uint64_t digest = digest_of(own);
    c10::intrusive_ptr<c10::StorageImpl> other;
    const auto [first, last] = known_.equal_range(digest);
    for (auto at = first; at != last && !other; ++at) {
      auto held = at->second.lock();
      if (held && same_bytes(*held, *own.unsafeGetStorageImpl())) other = std::move(held);
    }
    if (!other) {
      known_.emplace(digest, own.getWeakStorageImpl());
    } else if (other.get() != own.unsafeGetStorageImpl()) {
      shared += own.nbytes();
      constant.tensor = graph::Geometry::of(constant.tensor).over(c10::Storage(std::move(other)));
    }
  }
  return shared;
}

}  // namespace bellows::compile_detail
