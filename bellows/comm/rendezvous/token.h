#pragma once

#include <string>
#include <string_view>

namespace bellows::comm {

/// A new secret for a job: 32 hexadecimal digits from the system's random numbers.
std::string make_token();

/// What only a holder of `token` can compute of `text`, in hexadecimal digits (HMAC-SHA256). Does not give the token away.
std::string sign(const std::string& token, std::string_view text);

}  // namespace bellows::comm
