#include "bellows/comm/rendezvous/token.h"

#include <c10/util/Exception.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>
#include <span>

#include "bellows/core/error.h"

namespace bellows::comm {

namespace {

std::string hexadecimal(std::span<const unsigned char> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const unsigned char byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace

std::string make_token() {
  std::array<unsigned char, 16> bytes;
  TORCH_CHECK(getrandom(bytes.data(), bytes.size(), 0) == ssize_t{bytes.size()},
              "make_token: the system returned no random numbers: ", errno_message(errno), ".");
  return hexadecimal(bytes);
}

std::string sign(const std::string& token, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), digest.data(), &size);
  return hexadecimal(std::span(digest).first(size));
}

}  // namespace bellows::comm
