#include "bellows/io/hash.h"

#include <c10/util/Exception.h>
#include <openssl/evp.h>

#define XXH_INLINE_ALL  // nothing to link
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <span>

#include "bellows/core/error.h"

namespace bellows::io {

namespace {

std::string hex_digits(std::span<const unsigned char> digest) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) text += {digits[byte >> 4], digits[byte & 15]};
  return text;
}

/// OpenSSL's name of the algorithm.
std::string openssl_name(std::string_view name) {
  if (name == "blake2b") return "BLAKE2b512";
  if (name == "blake2s") return "BLAKE2s256";
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');  // sha3_256
  return text;
}

std::string openssl_hex(std::string_view name, ByteSpan bytes) {
  const EVP_MD* algorithm = EVP_get_digestbyname(openssl_name(name).c_str());
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  const bool done = algorithm && EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, algorithm, nullptr) == 1;
  TORCH_CHECK(done, "hash_hex: OpenSSL cannot compute ", name,
              " on this machine. Its configuration may forbid the algorithm.");
  return hex_digits({digest.data(), size});
}

std::string xxhash_hex(std::string_view name, ByteSpan bytes) {
  if (name == "xxh32") {
    XXH32_canonical_t digest;
    XXH32_canonicalFromHash(&digest, XXH32(bytes.data(), bytes.size(), 0));
    return hex_digits(digest.digest);
  }
  if (name == "xxh64" || name == "xxh3_64") {
    XXH64_canonical_t digest;
    XXH64_canonicalFromHash(
        &digest, name == "xxh64" ? XXH64(bytes.data(), bytes.size(), 0) : XXH3_64bits(bytes.data(), bytes.size()));
    return hex_digits(digest.digest);
  }
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes.data(), bytes.size()));
  return hex_digits(digest.digest);
}

}  // namespace

const std::vector<std::string>& hash_names() {
  static const std::vector<std::string> names{"blake2b", "blake2s",  "md5",      "sha1",     "sha224",   "sha256",
                                              "sha384",  "sha3_224", "sha3_256", "sha3_384", "sha3_512", "sha512",
                                              "xxh128",  "xxh32",    "xxh3_128", "xxh3_64",  "xxh64"};
  return names;
}

std::string hash_hex(std::string_view name, ByteSpan bytes) {
  const auto& names = hash_names();
  TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), name) != names.end(), "hash_hex: no algorithm has the name ",
                    printable(name), ".", did_you_mean(name, names), " The algorithms are: ", c10::Join(", ", names),
                    ".");
  return name.starts_with("xxh") ? xxhash_hex(name, bytes) : openssl_hex(name, bytes);
}

}  // namespace bellows::io
