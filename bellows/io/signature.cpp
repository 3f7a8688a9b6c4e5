#include "bellows/io/signature.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "bellows/core/error.h"
#include "bellows/io/hash.h"
#include "bellows/system/trusted_folder.h"

namespace bellows::io {
namespace {

constexpr off_t longest_key_file = 64 * 1024;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Memory = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

const unsigned char* data_of(ByteSpan bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

Memory memory_of(std::string_view text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free_all};
}

std::string text_of(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  return {data, static_cast<size_t>(std::max(size, 0L))};
}

/// OpenSSL calls this for a key with a password. Without it, OpenSSL would ask on the terminal.
int no_password(char*, int, int, void*) {
  return -1;
}

PublicKey raw_of(const EVP_PKEY* key, const std::string& name) {
  PublicKey result;
  size_t size = result.raw.size();
  const bool read = EVP_PKEY_id(key) == EVP_PKEY_ED25519 &&
                    EVP_PKEY_get_raw_public_key(key, reinterpret_cast<unsigned char*>(result.raw.data()), &size) == 1;
  ERR_clear_error();
  TORCH_CHECK_VALUE(read && size == result.raw.size(), name, ": expected a key of the algorithm Ed25519, got ",
                    OBJ_nid2sn(EVP_PKEY_id(key)), ". `bellows cache keygen` creates a pair of keys.");
  return result;
}

/// Reads a small file. `problem_of` returns why its owner or mode is refused, or "".
template <class Problem>
std::string read_key_file(const std::string& path, const Problem& problem_of) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TORCH_CHECK_VALUE(fd >= 0, "cannot open the key file ", path, ": ", errno_message(errno), ".");
  const auto closed = c10::make_scope_exit([fd] { ::close(fd); });
  struct stat status {};
  TORCH_CHECK_VALUE(::fstat(fd, &status) == 0 && S_ISREG(status.st_mode), path, " is not a regular file.");
  TORCH_CHECK_VALUE(status.st_size <= longest_key_file, path, " is not a key file: it has ", status.st_size,
                    " bytes, expected at most ", longest_key_file, ".");
  const std::string problem = problem_of(status);
  TORCH_CHECK_VALUE(problem.empty(), problem);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  TORCH_CHECK_VALUE(got >= 0, "cannot read the key file ", path, ": ", errno_message(errno), ".");
  text.resize(static_cast<size_t>(got));
  return text;
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written > 0, "cannot write ", path, ": ", errno_message(errno), ".");
    text.remove_prefix(static_cast<size_t>(written));
  }
  TORCH_CHECK(::fsync(fd) == 0, "cannot write ", path, ": ", errno_message(errno), ".");
}

}  // namespace

bool PublicKey::verify(ByteSpan message, ByteSpan signature) const {
  const Key key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, data_of(std::as_bytes(std::span(raw))), raw.size()),
      &EVP_PKEY_free);
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const bool right =
      key && context && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
      EVP_DigestVerify(context.get(), data_of(signature), signature.size(), data_of(message), message.size()) == 1;
  ERR_clear_error();
  return right;
}

std::string PublicKey::fingerprint() const {
  return "SHA256:" + hash_hex("sha256", std::as_bytes(std::span(raw)));
}

std::string PublicKey::pem() const {
  const Key key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, data_of(std::as_bytes(std::span(raw))), raw.size()),
      &EVP_PKEY_free);
  const Memory memory(BIO_new(BIO_s_mem()), &BIO_free_all);
  TORCH_CHECK(key && memory && PEM_write_bio_PUBKEY(memory.get(), key.get()) == 1,
              "OpenSSL cannot write a public key.");
  return text_of(memory.get());
}

std::vector<PublicKey> PublicKey::parse(std::string_view pem, const std::string& name) {
  TORCH_CHECK_VALUE(pem.find("PRIVATE KEY-----") == pem.npos, name,
                    " contains a private key. Expected the public key, such as the file that ends in .pub.");
  const Memory memory = memory_of(pem);
  std::vector<PublicKey> keys;
  for (size_t begin = 0; (begin = pem.find("-----BEGIN ", begin)) != pem.npos; begin += 11) {
    const Key key(PEM_read_bio_PUBKEY(memory.get(), nullptr, &no_password, nullptr), &EVP_PKEY_free);
    ERR_clear_error();
    TORCH_CHECK_VALUE(key, name, ": key ", keys.size() + 1, " is damaged, or is not a public key in PEM format.");
    keys.push_back(raw_of(key.get(), name));
  }
  TORCH_CHECK_VALUE(!keys.empty(), name,
                    " contains no public key. Expected PEM text that begins with -----BEGIN PUBLIC KEY-----.");
  return keys;
}

std::vector<PublicKey> PublicKey::read(const std::string& path) {
  const std::string text = read_key_file(path, [&](const struct stat& status) -> std::string {
    if (!is_trusted(status))
      return c10::str("the key file ", path, " belongs to user ", status.st_uid,
                      " or can be written by other users (mode ", c10::str(std::oct, status.st_mode & 07777),
                      "). Such a key is not trusted. Copy it, and run: chmod go-w COPY");
    const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
    const std::string problem = distrust_of(folder.string());
    return problem.empty() ? "" : c10::str("the key file ", path, " is not trusted: ", problem);
  });
  return parse(text, path);
}

SigningKey::SigningKey(evp_pkey_st* key) : key_(key, &EVP_PKEY_free) {}

SigningKey SigningKey::generate() {
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(
      EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, nullptr), &EVP_PKEY_CTX_free);
  EVP_PKEY* key = nullptr;
  const bool made = context && EVP_PKEY_keygen_init(context.get()) == 1 && EVP_PKEY_keygen(context.get(), &key) == 1;
  ERR_clear_error();
  TORCH_CHECK(made,
              "OpenSSL cannot create an Ed25519 key on this machine. Its configuration may forbid the algorithm.");
  return SigningKey(key);
}

SigningKey SigningKey::read(const std::string& path) {
  std::string text = read_key_file(path, [&](const struct stat& status) -> std::string {
    if (status.st_uid != ::geteuid())
      return c10::str("the private key ", path, " belongs to user ", status.st_uid, ", but this process runs as user ",
                      ::geteuid(), ".");
    if (status.st_mode & 077)
      return c10::str("other users can access the private key ", path, ". Run: chmod 600 '", path, "'");
    return "";
  });
  const Memory memory = memory_of(text);
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(memory.get(), nullptr, &no_password, nullptr);
  OPENSSL_cleanse(text.data(), text.size());
  ERR_clear_error();
  TORCH_CHECK_VALUE(
      key, path, " is not a private key without a password in PEM format. `bellows cache keygen` creates such a key.");
  SigningKey result(key);
  raw_of(key, path);
  return result;
}

void SigningKey::write_new(const std::string& path) const {
  const Memory memory(BIO_new(BIO_s_secmem()), &BIO_free_all);
  const bool made =
      memory && PEM_write_bio_PKCS8PrivateKey(memory.get(), key_.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1;
  TORCH_CHECK(made, "OpenSSL cannot write a private key.");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  TORCH_CHECK_VALUE(fd >= 0 || errno != EEXIST, path, " already exists. Choose another name, or delete the file.");
  TORCH_CHECK(fd >= 0, "cannot create ", path, ": ", errno_message(errno), ".");
  try {
    char* data = nullptr;
    const long size = BIO_get_mem_data(memory.get(), &data);
    write_all(fd, {data, static_cast<size_t>(size)}, path);
  } catch (...) {
    ::close(fd);
    ::unlink(path.c_str());
    throw;
  }
  ::close(fd);
}

PublicKey SigningKey::public_key() const {
  return raw_of(key_.get(), "the key");
}

Signature SigningKey::sign(ByteSpan message) const {
  Signature signature{};
  size_t size = signature.size();
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const bool made = context && EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1 &&
                    EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                                   data_of(message), message.size()) == 1;
  ERR_clear_error();
  TORCH_CHECK(made && size == signature.size(), "OpenSSL cannot sign.");
  return signature;
}

}  // namespace bellows::io
