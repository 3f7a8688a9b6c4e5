#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <unordered_map>

namespace bellows::graph::detail {

/// Decides which calls of a region run eagerly, because following them is in vain. The decisions depend on the calls so
/// far, but not on time.
class PlainCalls {
 public:
  /// Returns a hash of the kinds of a call's arguments, and of the modes of autograd and autocast. Returns 0 as long as
  /// no call was in vain, because no decision needs the hash then. The first note() of such a call needs it.
  uint64_t kind_of_call(std::span<const at::Tensor* const> arguments) const;
  /// Returns whether the next call of this kind runs eagerly.
  bool take(uint64_t kind);
  /// Reports a call that was followed or recorded.
  void note(uint64_t kind, bool in_vain);
  /// Reports a call whose kind was 0, because no call before it was in vain.
  void note_first(std::span<const at::Tensor* const> arguments, bool in_vain);

 private:
  /// After each call in vain, 16 times as many calls run eagerly until the next call is followed. A loop of a few calls
  /// is then hardly slower than plain code. A followed call can take twice the time of an eager one. With the longest
  /// streak, following then costs 0.4 % of the time.
  struct Streak {
    int length = 0, left = 0;
  };
  static constexpr int growth = 16, longest = 256;
  static constexpr size_t most_kinds = 1024;

  bool any_in_vain_ = false;
  std::unordered_map<uint64_t, Streak> kinds_;
};

}  // namespace bellows::graph::detail
