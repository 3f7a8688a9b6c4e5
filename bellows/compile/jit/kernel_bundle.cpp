#include "bellows/compile/jit/kernel_bundle.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "bellows/io/hash.h"

namespace bellows::compile_detail {
namespace {

using io::ByteSpan;

constexpr std::string_view magic = "BLWKRNLS";
constexpr uint32_t version = 1;
constexpr size_t public_key_bytes = sizeof(io::PublicKey::raw), sha256_digits = 64;
constexpr size_t head_bytes = 8 + 4 + 8 + public_key_bytes;
constexpr size_t longest_text = 64 * 1024, longest_bundle = size_t{1} << 30;

/// The texts of an origin, in the order in which they are stored.
template <class Origin>
auto texts_of(Origin& origin) {
  return std::array{&origin.bellows, &origin.format, &origin.compiler, &origin.processor, &origin.c_library};
}

bool is_key(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char each) { return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f'); });
}

/// Reads parts of a bundle and checks that they are inside it.
class Reader {
 public:
  Reader(ByteSpan bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  ByteSpan take(uint64_t size, const char* what) {
    check(size <= bytes_.size() - at_, what);
    const ByteSpan part = bytes_.subspan(at_, size);
    at_ += size;
    return part;
  }
  template <class T>
  T number(const char* what) {
    return io::load_little<T>(take(sizeof(T), what));
  }
  std::string_view text(const char* what) {
    const auto size = number<uint32_t>(what);
    check(size <= longest_text, what);
    return io::as_text(take(size, what));
  }
  void check(bool right, const char* what) const {
    TORCH_CHECK_VALUE(right, name_, ": the ", what, " at byte ", at_, " is damaged. Export the bundle again.");
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  ByteSpan bytes_;
  std::string name_;
  size_t at_ = 0;
};

/// Checks magic, version and size, which give the clearest messages.
void check_head(ByteSpan bytes, const std::string& name) {
  const std::string_view text = io::as_text(bytes);
  TORCH_CHECK_VALUE(text.starts_with(magic), name, " is not a bundle of kernels, but ", io::describe_content(bytes),
                    ". `bellows cache export` writes bundles.");
  TORCH_CHECK_VALUE(bytes.size() >= head_bytes + io::signature_bytes, name, " is truncated: it has only ", bytes.size(),
                    " bytes.");
  const auto found = io::load_little<uint32_t>(bytes, 8);
  TORCH_CHECK_VALUE(found == version, name, " has version ", found,
                    " of the bundle format, but this Bellows reads only version ", version, ". ",
                    found > version ? "Update Bellows." : "Export the bundle again.");
  const auto size = io::load_little<uint64_t>(bytes, 12);
  TORCH_CHECK_VALUE(size == bytes.size(), name, size > bytes.size() ? " is truncated" : " is damaged", ": expected ",
                    size, " bytes, got ", bytes.size(), ". Copy the file again.");
}

/// The first line of the origin's compiler, or the processor's model.
std::string short_text(const std::string& text, std::string_view line_start) {
  const size_t begin = line_start.empty() ? 0 : text.find(line_start);
  if (begin == text.npos) return io::printable(text, 60);
  return io::printable(std::string_view(text).substr(begin, text.find('\n', begin) - begin), 80);
}

std::pair<int, int> major_minor(const std::string& number) {
  char* end = nullptr;
  const long major = std::strtol(number.c_str(), &end, 10);
  return {static_cast<int>(major), *end == '.' ? static_cast<int>(std::strtol(end + 1, nullptr, 10)) : 0};
}

}  // namespace

std::string make_kernel_bundle(const KernelBundle& bundle, const io::SigningKey& key) {
  std::vector<const BundledKernel*> kernels;
  for (const BundledKernel& kernel : bundle.kernels) kernels.push_back(&kernel);
  std::sort(kernels.begin(), kernels.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
  std::string body;
  for (const std::string* text : texts_of(bundle.origin)) {
    TORCH_CHECK_VALUE(text->size() <= longest_text, "make_kernel_bundle: a text is longer than ", longest_text,
                      " bytes.");
    io::append_little(body, static_cast<uint32_t>(text->size()));
    body += *text;
  }
  io::append_little(body, static_cast<uint32_t>(kernels.size()));
  for (size_t i = 0; i < kernels.size(); ++i) {
    const BundledKernel& kernel = *kernels[i];
    TORCH_CHECK_VALUE(kernel.key.size() == kernel_key_digits && is_key(kernel.key), "make_kernel_bundle: the key \"",
                      kernel.key, "\" is not ", kernel_key_digits, " hexadecimal digits.");
    TORCH_CHECK_VALUE(i == 0 || kernels[i - 1]->key != kernel.key, "make_kernel_bundle: two kernels have the key ",
                      kernel.key, ".");
    body += kernel.key;
    io::append_little(body, static_cast<uint64_t>(kernel.library.size()));
    body += io::hash_hex("sha256", io::as_bytes(kernel.library));
    body += kernel.library;
  }
  const size_t size = head_bytes + body.size() + io::signature_bytes;
  TORCH_CHECK_VALUE(size <= longest_bundle, "the kernels need ", size, " bytes. A bundle can have at most ",
                    longest_bundle, " bytes.");
  std::string file(magic);
  io::append_little(file, version);
  io::append_little(file, static_cast<uint64_t>(size));
  file += io::as_text(key.public_key().raw);
  file += body;
  file += io::as_text(key.sign(io::as_bytes(file)));
  return file;
}

KernelBundle open_kernel_bundle(ByteSpan bytes, const std::vector<io::PublicKey>& trusted, const std::string& name) {
  check_head(bytes, name);
  io::PublicKey signer;
  std::copy_n(bytes.begin() + (head_bytes - public_key_bytes), public_key_bytes, signer.raw.begin());
  std::string fingerprints;
  for (const io::PublicKey& key : trusted) fingerprints += (fingerprints.empty() ? "" : ", ") + key.fingerprint();
  TORCH_CHECK_VALUE(std::find(trusted.begin(), trusted.end(), signer) != trusted.end(), name,
                    " is signed with the key ", signer.fingerprint(),
                    ", which is not trusted. Trusted: ", fingerprints.empty() ? "no key" : fingerprints, ".");
  TORCH_CHECK_VALUE(
      signer.verify(bytes.first(bytes.size() - io::signature_bytes), bytes.last(io::signature_bytes)), name,
      ": the signature is wrong. The file was changed after it was signed, or is damaged. Copy it again.");
  return parse_kernel_bundle(bytes, name);
}

KernelBundle parse_kernel_bundle(ByteSpan bytes, const std::string& name) {
  check_head(bytes, name);
  Reader reader(bytes.first(bytes.size() - io::signature_bytes), name);
  reader.take(head_bytes, "head");
  KernelBundle bundle;
  for (std::string* text : texts_of(bundle.origin)) *text = reader.text("description of the machine");
  const auto count = reader.number<uint32_t>("number of kernels");
  for (uint32_t i = 0; i < count; ++i) {
    BundledKernel kernel{.key = std::string(io::as_text(reader.take(kernel_key_digits, "name of a kernel"))),
                         .library = {}};
    // The key becomes the name of a file. Ascending order also excludes repeated keys.
    reader.check(is_key(kernel.key) && (i == 0 || bundle.kernels.back().key < kernel.key), "name of a kernel");
    const auto size = reader.number<uint64_t>("size of a kernel");
    const std::string_view sum = io::as_text(reader.take(sha256_digits, "checksum of a kernel"));
    kernel.library = io::as_text(reader.take(size, "kernel"));
    reader.check(io::hash_hex("sha256", io::as_bytes(kernel.library)) == sum, "kernel before the checksum");
    bundle.kernels.push_back(std::move(kernel));
  }
  reader.check(reader.at_end(), "part after the last kernel");
  return bundle;
}

std::string origin_problem(const KernelOrigin& bundled, const KernelOrigin& here) {
  if (bundled.format != here.format)
    return c10::str("the kernels have the format ", io::printable(bundled.format), " of Bellows ",
                    io::printable(bundled.bellows), ", but this Bellows (", here.bellows, ") uses ",
                    io::printable(here.format), ". Export the bundle with this version of Bellows.");
  if (bundled.processor != here.processor)
    return c10::str("the kernels were compiled for another processor: ", short_text(bundled.processor, "model name"),
                    ". This machine has ", short_text(here.processor, "model name"),
                    bundled.processor.size() == here.processor.size() ? "" : ", or the processors have different flags",
                    ".");
  if (bundled.compiler != here.compiler)
    return c10::str("the kernels were compiled with another compiler: ", short_text(bundled.compiler, ""),
                    ". This machine has ", short_text(here.compiler, ""),
                    ". Install the same compiler, or set BELLOWS_CXX.");
  if (major_minor(bundled.c_library) > major_minor(here.c_library))
    return c10::str("the kernels were linked with glibc ", io::printable(bundled.c_library),
                    ", but this machine has the older glibc ", here.c_library, ".");
  return "";
}

}  // namespace bellows::compile_detail
