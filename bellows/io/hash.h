#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// The algorithms that hash_hex() supports, in sorted order: blake2b, blake2s, md5, the sha1, sha2 and sha3 families,
/// xxh32, xxh64, xxh3_64, xxh3_128, xxh128.
const std::vector<std::string>& hash_names();

/// Returns the digest in lower-case hexadecimal digits.
/// Params: name – one of hash_names()
/// Throws: c10::ValueError if `name` is unknown (the message suggests the nearest name)
/// Ref:    Python's hashlib and xxhash: hexdigest()
std::string hash_hex(std::string_view name, ByteSpan bytes);

}  // namespace bellows::io
