#include "bellows/compile/jit/kernel_bundle.h"
#include "bellows/io/signature.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

/// With a head that is right for the bytes after it.
std::string with_head(std::string_view text) {
  constexpr size_t magic_and_version = 12, size_digits = 8;
  std::string mended("BLWKRNLS\1\0\0\0", magic_and_version);
  io::append_little(mended, static_cast<uint64_t>(text.size()));
  if (text.size() > mended.size()) mended += text.substr(magic_and_version + size_digits);
  return mended;
}

}  // namespace

void kernel_bundle(io::ByteSpan bytes) {
  for (const std::string& text : {std::string(io::as_text(bytes)), with_head(io::as_text(bytes))}) {
    rejecting([&] {
      const auto bundle = compile_detail::parse_kernel_bundle(io::as_bytes(text), "fuzz");
      for (const auto& kernel : bundle.kernels) touch(io::as_bytes(kernel.library));
      touch(io::as_bytes(compile_detail::origin_problem(bundle.origin, {})));
    });
    rejecting([&] { compile_detail::open_kernel_bundle(io::as_bytes(text), {io::PublicKey{}}, "fuzz"); });
  }
}

void public_key(io::ByteSpan bytes) {
  rejecting([&] {
    for (const io::PublicKey& key : io::PublicKey::parse(io::as_text(bytes), "fuzz"))
      touch(io::as_bytes(key.pem() + key.fingerprint()));
  });
}

}  // namespace bellows::fuzz
