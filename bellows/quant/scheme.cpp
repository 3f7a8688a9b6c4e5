#include "bellows/quant/scheme.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

namespace bellows::quant {

namespace {
constexpr std::array<const char*, 4> granularity_names = {"tensor", "channel", "token", "group"};
}  // namespace

const char* name_of(Granularity granularity) {
  return granularity_names.at(static_cast<size_t>(granularity));
}

Granularity granularity_of(const std::string& name) {
  const auto found = std::find(granularity_names.begin(), granularity_names.end(), name);
  TORCH_CHECK_VALUE(found != granularity_names.end(), "quantization: there is no granularity \"", name,
                    "\". Expected tensor, channel, token or group.");
  return static_cast<Granularity>(found - granularity_names.begin());
}

bool Scheme::is_int8_per_output() const {
  return bits == 8 && is_signed && symmetric && granularity == Granularity::channel && axis == 0;
}

int64_t Scheme::smallest() const {
  const int64_t full = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
  return narrow_range ? full + 1 : full;
}

int64_t Scheme::largest() const {
  return is_signed ? (int64_t{1} << (bits - 1)) - 1 : (int64_t{1} << bits) - 1;
}

void Scheme::check() const {
  TORCH_CHECK_VALUE(bits >= 1 && bits <= 8, "quantization: expected 1 to 8 bits, got ", bits, ".");
  TORCH_CHECK_VALUE(!narrow_range || bits > 1,
                    "quantization: a narrow range leaves one value of 1 bit. Use at least 2 bits.");
  TORCH_CHECK_VALUE(granularity != Granularity::group || group_size >= 1,
                    "quantization: expected a group size of at least 1, got ", group_size, ".");
}

std::string Scheme::to_text() const {
  std::string text = c10::str(is_signed ? "int" : "uint", bits, symmetric ? " symmetric" : " affine");
  switch (granularity) {
    case Granularity::tensor:
      return text + ", per tensor";
    case Granularity::channel:
      return c10::str(text, ", per channel of dim ", axis);
    case Granularity::token:
      return text + ", per token";
    case Granularity::group:
      return c10::str(text, ", groups of ", group_size);
  }
  return text;
}

Scheme weight_scheme(int bits) {
  return {.bits = bits, .is_signed = true, .symmetric = true, .granularity = Granularity::channel, .axis = 0};
}

Scheme group_scheme(int bits, int64_t group_size) {
  return {
      .bits = bits, .is_signed = true, .symmetric = true, .granularity = Granularity::group, .group_size = group_size};
}

}  // namespace bellows::quant
