#include "bellows/serve/text/bytes_tensor.h"

#include <c10/util/StringUtil.h>

#include <cstring>
#include <limits>

#include "bellows/serve/request_error.h"

namespace bellows::serve {

namespace {

using Length = uint32_t;  // the protocol's byte order is that of x86

}  // namespace

std::vector<std::string> decode_bytes(const std::string& what, std::string_view encoded, int64_t count) {
  const auto fail = [&](const auto&... parts) { throw RequestError(status_bad_request, c10::str(what, parts...)); };
  // The number of elements is bounded by the size of the data before memory is used.
  if (static_cast<uint64_t>(count) > encoded.size() / sizeof(Length))
    fail(": the shape has ", count, " elements of at least ", sizeof(Length), " bytes, but the BYTES tensor has only ",
         encoded.size(), " bytes.");
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    Length length = 0;
    if (encoded.size() < sizeof length) fail(": element ", i, " of the BYTES tensor has no complete length.");
    std::memcpy(&length, encoded.data(), sizeof length);
    encoded.remove_prefix(sizeof length);
    if (length > encoded.size())
      fail(": element ", i, " of the BYTES tensor states ", length, " bytes, but only ", encoded.size(),
           " bytes are left.");
    values.emplace_back(encoded.substr(0, length));
    encoded.remove_prefix(length);
  }
  if (!encoded.empty()) fail(": ", encoded.size(), " bytes follow the ", count, " elements of the BYTES tensor.");
  return values;
}

void encode_bytes(std::string& to, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    if (value.size() > std::numeric_limits<Length>::max())
      throw RequestError(status_internal, "an element of a BYTES tensor is longer than 2^32 - 1 bytes.");
    const auto length = static_cast<Length>(value.size());
    to.append(reinterpret_cast<const char*>(&length), sizeof length).append(value);
  }
}

}  // namespace bellows::serve
