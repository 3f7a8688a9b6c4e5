#pragma once

#include <string>
#include <string_view>

namespace bellows::comm {

/// Computes the HMAC-SHA256 of `text` with the key `token`, the secret of a job (system/random_token.h), in hexadecimal digits. The token cannot be derived from the
/// result.
std::string sign(const std::string& token, std::string_view text);

}  // namespace bellows::comm
