#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::serve {

/// A tensor of the protocol's datatype BYTES: each element is a byte string. libtorch has no such tensors, so requests
/// and results carry them next to the others.
struct BytesTensor {
  std::vector<int64_t> sizes{};
  std::vector<std::string> values{};  ///< in row-major order
};

/// The BYTES tensors of a request or a result, with one place for each input or output. A place is null if the tensor
/// has another datatype. The list is empty if no tensor is a BYTES tensor.
using BytesTensors = std::vector<std::shared_ptr<const BytesTensor>>;

/// Reads the elements of a binary BYTES tensor: each one is its length in 4 bytes (little endian) and its bytes.
/// Params: what  – name of the tensor, for error messages
///         count – number of elements of the shape
/// Throws: RequestError with status 400 if the bytes are not exactly `count` elements
std::vector<std::string> decode_bytes(const std::string& what, std::string_view encoded, int64_t count);

/// Appends the elements in the encoding of decode_bytes().
/// Throws: RequestError with status 500 if an element is longer than 2^32 - 1 bytes
void encode_bytes(std::string& to, const std::vector<std::string>& values);

}  // namespace bellows::serve
