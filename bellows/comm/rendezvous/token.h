#pragma once

#include <string>
#include <string_view>

namespace bellows::comm {

/// Generates a secret for a job: 32 hexadecimal digits from the system's random number generator.
std::string make_token();

/// Computes the HMAC-SHA256 of `text` with the key `token`, in hexadecimal digits. The token cannot be derived from the
/// result.
std::string sign(const std::string& token, std::string_view text);

}  // namespace bellows::comm
