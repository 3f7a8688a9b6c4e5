#pragma once

#include <concepts>
#include <type_traits>

namespace bellows {

/// Returns the smallest multiple of `unit` that is at least `count`.
/// Params: count – at least 0; count + unit must fit into the type
///         unit  – at least 1
template <std::integral Number>
constexpr Number round_up(Number count, std::type_identity_t<Number> unit) {
  return (count + unit - 1) / unit * unit;
}

}  // namespace bellows
