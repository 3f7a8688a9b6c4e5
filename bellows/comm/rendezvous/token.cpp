#include "bellows/comm/rendezvous/token.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <span>

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

std::string sign(const std::string& token, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), digest.data(), &size);
  return hexadecimal(std::span(digest).first(size));
}

}  // namespace bellows::comm
