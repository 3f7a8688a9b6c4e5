#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bellows/io/bytes.h"

struct evp_pkey_st;

namespace bellows::io {

inline constexpr size_t signature_bytes = 64;
using Signature = std::array<std::byte, signature_bytes>;

/// A public key of Ed25519, which verifies signatures.
struct PublicKey {
  std::array<std::byte, 32> raw{};

  bool verify(ByteSpan message, ByteSpan signature) const;
  /// Returns the digest that identifies the key in messages: "SHA256:" and 64 hexadecimal digits.
  std::string fingerprint() const;
  /// Returns the key in PEM format, as `openssl pkey -pubout` prints it.
  std::string pem() const;
  bool operator==(const PublicKey& other) const = default;

  /// Reads all public keys in a PEM text.
  /// Throws: c10::ValueError if the text contains no key, a damaged key, or a key of another algorithm
  static std::vector<PublicKey> parse(std::string_view pem, const std::string& name);
  /// Reads the public keys in a PEM file.
  /// Throws: c10::ValueError as parse(), and if the file cannot be read, or if other users can write to the file or
  ///         replace it
  static std::vector<PublicKey> read(const std::string& path);
};

/// A private key of Ed25519, which signs messages. Anyone who has the key can sign.
/// Ref: RFC 8032
class SigningKey {
 public:
  /// Creates a random key.
  /// Throws: c10::Error if the system provides no random numbers
  static SigningKey generate();
  /// Reads a private key without a password from a PEM file (PKCS #8), such as `openssl genpkey -algorithm ed25519`
  /// writes.
  /// Throws: c10::ValueError if the file cannot be read, is not such a key, belongs to another user, or can be read by
  ///         other users
  static SigningKey read(const std::string& path);
  /// Writes the key to a new PEM file with mode 0600.
  /// Throws: c10::ValueError if the file exists. c10::Error if it cannot be written
  void write_new(const std::string& path) const;

  PublicKey public_key() const;
  Signature sign(ByteSpan message) const;

 private:
  explicit SigningKey(evp_pkey_st* key);
  std::shared_ptr<evp_pkey_st> key_;
};

}  // namespace bellows::io
