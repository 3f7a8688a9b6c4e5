// Signed bundles of kernels: only code of trusted publishers, for this machine, may get into the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include <c10/util/Exception.h>

#include "bellows/compile/jit/kernel_transfer.h"
#include "tests/compile/kernel_cache_support.h"
#include "tests/support/errors.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const KernelOrigin some_origin{
    .bellows = "1", .format = "f", .compiler = "g++ 1\n-O3 \n", .processor = "model name: a\n", .c_library = "2.36"};

std::string some_bundle(const io::SigningKey& key, KernelOrigin origin = some_origin) {
  const std::string first(kernel_key_digits, 'a'), second(kernel_key_digits, 'b');
  return make_kernel_bundle({.origin = std::move(origin), .kernels = {{second, "second library"}, {first, "first"}}},
                            key);
}

KernelBundle open(const std::string& file, const io::SigningKey& key) {
  return open_kernel_bundle(io::as_bytes(file), {key.public_key()}, "x.bundle");
}

/// A cache with the kernels 1 to 3, and a key pair.
struct Publisher : Folder {
  Publisher() : cache({.folder = path + "/kernels"}), key(io::SigningKey::generate()) {
    for (int i = 1; i <= 3; ++i) load_number(cache, i);
    bundle = path + "/kernels.bundle";
  }
  KernelCache cache;
  io::SigningKey key;
  std::string bundle;
};

TEST(KernelBundleTest, MovesKernelsToAnotherCache) {
  const Publisher from;
  const KernelTransfer exported = export_kernels(from.cache, from.bundle, from.key);
  EXPECT_EQ(exported.kernels, 3);
  EXPECT_EQ(exported.skipped, 0);
  EXPECT_EQ(exported.bytes, static_cast<int64_t>(fs::file_size(from.bundle)));
  const Folder folder;
  KernelCache to({.folder = folder.path + "/a/kernels"});
  load_number(to, 2);
  const KernelTransfer imported = import_kernels(to, from.bundle, {from.key.public_key()});
  EXPECT_EQ(imported.kernels, 2);
  EXPECT_EQ(imported.skipped, 1);
  KernelCache user({.folder = folder.path + "/a/kernels"});
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(load_number(user, i), i);
  EXPECT_EQ(user.counts().from_disk, 3);
  EXPECT_EQ(user.counts().compiled, 0);
  for (const auto& item : fs::directory_iterator(folder.path + "/a/kernels")) {
    if (item.path().extension() == ".so") {
      EXPECT_EQ(item.status().permissions(), fs::perms::owner_read | fs::perms::owner_write);
    }
  }
}

TEST(KernelBundleTest, ExportsOnlyValidKernelsOfThisMachine) {
  const Publisher from;
  const auto entries = from.cache.entries();
  ASSERT_EQ(entries.size(), 3u);
  for (const auto& entry : entries) EXPECT_TRUE(entry.usable && entry.problem.empty()) << entry.problem;
  const auto path_of = [&](size_t i) { return fs::path(from.path + "/kernels/" + entries[i].key + ".so"); };
  fs::permissions(path_of(0), fs::perms::group_write, fs::perm_options::add);
  write_bytes(path_of(1), "damaged");
  const auto now = from.cache.entries();
  EXPECT_THAT(now[0].problem, HasSubstr("other users can write to it"));
  EXPECT_THAT(now[1].problem, HasSubstr("damaged"));
  const KernelTransfer exported = export_kernels(from.cache, from.bundle, from.key);
  EXPECT_EQ(exported.kernels, 1);
  EXPECT_EQ(exported.skipped, 2);
  const std::string file = read_bytes(from.bundle);
  EXPECT_EQ(open(file, from.key).kernels.at(0).key, entries[2].key);
  const Folder empty;
  KernelCache none({.folder = empty.path});
  EXPECT_THAT(message_of([&] { export_kernels(none, from.bundle, from.key); }),
              HasSubstr("has no kernels for this machine"));
  EXPECT_EQ(read_bytes(from.bundle), file) << "a failure changed the file";
}

TEST(KernelBundleTest, ExportsNoKernelsOfAnotherCompiler) {
  const Folder folder;
  const int status = in_child([&] {
    write_bytes(folder.path + "/compiler",
                "#!/bin/sh\n[ \"$1\" = --version ] && echo another 1 && exit\nexec g++ \"$@\"\n");
    fs::permissions(folder.path + "/compiler", fs::perms::owner_all);
    ::setenv("BELLOWS_CXX", (folder.path + "/compiler").c_str(), 1);
    KernelCache cache({.folder = folder.path + "/kernels"});
    return load_number(cache, 7) == 7 ? 0 : 1;
  });
  ASSERT_EQ(status, 0);
  KernelCache cache({.folder = folder.path + "/kernels"});
  ASSERT_EQ(cache.entries().size(), 1u);
  EXPECT_FALSE(cache.entries()[0].usable);
  EXPECT_EQ(cache.entries()[0].problem, "");
  EXPECT_THAT(message_of([&] { export_kernels(cache, folder.path + "/b", io::SigningKey::generate()); }),
              HasSubstr("kernels of another compiler or processor"));
  EXPECT_EQ(cache.clear(), 1);
  EXPECT_TRUE(cache.entries().empty());
}

TEST(KernelBundleTest, RefusesOtherKeys) {
  const Publisher from;
  export_kernels(from.cache, from.bundle, from.key);
  const Folder folder;
  KernelCache to({.folder = folder.path + "/kernels"});
  const auto other = io::SigningKey::generate().public_key();
  EXPECT_THAT(
      message_of([&] { import_kernels(to, from.bundle, {other}); }),
      AllOf(HasSubstr("is signed with the key " + from.key.public_key().fingerprint() + ", which is not trusted"),
            HasSubstr("Trusted: " + other.fingerprint())));
  EXPECT_THAT(message_of([&] { import_kernels(to, from.bundle, {}); }), HasSubstr("Trusted: no key"));
  EXPECT_FALSE(fs::exists(folder.path + "/kernels"));
  EXPECT_EQ(import_kernels(to, from.bundle, {other, from.key.public_key()}).kernels, 3);
}

/// Who copies the publisher's public key into a bundle of their own cannot sign it.
TEST(KernelBundleTest, RefusesBorrowedKeys) {
  const auto key = io::SigningKey::generate(), attacker = io::SigningKey::generate();
  std::string forged = some_bundle(attacker);
  const size_t place = forged.find(io::as_text(attacker.public_key().raw));
  ASSERT_NE(place, forged.npos);
  forged.replace(place, 32, io::as_text(key.public_key().raw));
  EXPECT_THAT(message_of([&] { open(forged, key); }), HasSubstr("the signature is wrong"));
}

TEST(KernelBundleTest, RefusesEveryChangedByteAndEveryLength) {
  const auto key = io::SigningKey::generate();
  const std::string file = some_bundle(key);
  EXPECT_EQ(open(file, key).kernels.size(), 2u);
  EXPECT_EQ(open(file, key).kernels[0].library, "first");
  EXPECT_EQ(open(file, key).origin.processor, some_origin.processor);
  for (size_t i = 0; i < file.size(); ++i) {
    std::string changed = file;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    EXPECT_THROW(open(changed, key), c10::ValueError) << "byte " << i;
    EXPECT_THROW(open(file.substr(0, i), key), c10::ValueError) << "length " << i;
  }
  EXPECT_THAT(message_of([&] { open(file.substr(0, file.size() - 1), key); }),
              HasSubstr(c10::str("is truncated: expected ", file.size(), " bytes, got ", file.size() - 1)));
  EXPECT_THAT(message_of([&] { open(file + "x", key); }), HasSubstr("is damaged: expected"));
  EXPECT_THAT(message_of([&] { open("", key); }), HasSubstr("is not a bundle of kernels, but an empty file"));
  std::string changed = file;
  changed[file.size() / 2] ^= 1;
  EXPECT_THAT(message_of([&] { open(changed, key); }), HasSubstr("was changed after it was signed"));
  std::string newer = file;
  newer[8] = 2;
  EXPECT_THAT(message_of([&] { open(newer, key); }),
              HasSubstr("has version 2 of the bundle format, but this Bellows reads only version 1. Update Bellows."));
}

/// A trusted publisher can still make mistakes.
TEST(KernelBundleTest, RefusesSignedNonsense) {
  const auto key = io::SigningKey::generate();
  EXPECT_THAT(message_of([&] {
                make_kernel_bundle({some_origin, {{"../../etc/passwd", "x"}}}, key);
              }),
              HasSubstr("hexadecimal digits"));
  const std::string name(kernel_key_digits, 'a');
  EXPECT_THAT(message_of([&] {
                make_kernel_bundle({some_origin, {{name, "x"}, {name, "y"}}}, key);
              }),
              HasSubstr("two kernels have the key"));
  const std::string file = some_bundle(key);
  const auto resigned = [&](const std::string& from, const std::string& to) {
    std::string body = file.substr(0, file.size() - io::signature_bytes);
    body.replace(body.find(from), from.size(), to);
    return body + std::string(io::as_text(key.sign(io::as_bytes(body))));
  };
  EXPECT_EQ(open(resigned("first", "first"), key).kernels.size(), 2u);
  EXPECT_THAT(message_of([&] { open(resigned("first", "worst"), key); }),
              HasSubstr("the kernel before the checksum at byte"));
  EXPECT_THAT(message_of([&] { open(resigned("aaaaaaaaaa", "../../../x"), key); }),
              HasSubstr("the name of a kernel at byte"));
  EXPECT_THAT(message_of([&] { open(resigned(name, std::string(kernel_key_digits, 'c')), key); }),
              HasSubstr("the name of a kernel at byte"))
      << "keys must ascend";
}

TEST(KernelBundleTest, RefusesOtherMachines) {
  const Publisher from;
  const KernelOrigin here = from.cache.origin();
  EXPECT_EQ(origin_problem(here, here), "");
  KernelOrigin other = here;
  other.bellows = "0.0.1";
  EXPECT_EQ(origin_problem(other, here), "");
  other = here;
  other.processor = "model name\t: Another\nflags\t: sse\n";
  EXPECT_THAT(origin_problem(other, here), AllOf(HasSubstr("compiled for another processor: "), HasSubstr("Another")));
  other = here;
  other.compiler = "g++ 99\n-O3 \n";
  EXPECT_THAT(origin_problem(other, here),
              AllOf(HasSubstr("another compiler: "), HasSubstr("g++ 99"), HasSubstr("BELLOWS_CXX")));
  other = here;
  other.c_library = "99.1";
  EXPECT_THAT(origin_problem(other, here), HasSubstr("older glibc"));
  other.c_library = "2.3";
  EXPECT_EQ(origin_problem(other, here), "") << "an older C library is no problem";
  other = here;
  other.format = "bellows kernel 99";
  EXPECT_THAT(origin_problem(other, here), HasSubstr("have the format"));
  write_bytes(from.bundle, some_bundle(from.key));
  const Folder folder;
  KernelCache to({.folder = folder.path + "/kernels"});
  EXPECT_THAT(message_of([&] { import_kernels(to, from.bundle, {from.key.public_key()}); }),
              HasSubstr("have the format"));
  EXPECT_FALSE(fs::exists(folder.path + "/kernels")) << "something was written";
}

TEST(KernelBundleTest, RefusesFoldersThatOthersCanChange) {
  const Publisher from;
  export_kernels(from.cache, from.bundle, from.key);
  const Folder outside;
  fs::create_directory(outside.path + "/kernels");
  fs::permissions(outside.path, fs::perms::group_write, fs::perm_options::add);
  KernelCache to({.folder = outside.path + "/kernels"});
  EXPECT_THAT(message_of([&] { import_kernels(to, from.bundle, {from.key.public_key()}); }), HasSubstr("chmod go-w"));
  EXPECT_THAT(message_of([&] { to.entries(); }), HasSubstr("chmod go-w"));
  EXPECT_THAT(message_of([&] { to.clear(); }), HasSubstr("chmod go-w"));
}

TEST(KernelBundleTest, RefusesBundlesLargerThanTheCache) {
  const Publisher from;
  export_kernels(from.cache, from.bundle, from.key);
  const Folder folder;
  KernelCache to({.folder = folder.path + "/kernels", .limit_bytes = 1000});
  EXPECT_THAT(message_of([&] { import_kernels(to, from.bundle, {from.key.public_key()}); }),
              HasSubstr("can hold only 1000 bytes"));
}

TEST(SignatureTest, VerifiesOnlyWhatWasSigned) {
  const auto key = io::SigningKey::generate();
  const auto signature = key.sign(io::as_bytes("message"));
  EXPECT_TRUE(key.public_key().verify(io::as_bytes("message"), signature));
  EXPECT_FALSE(key.public_key().verify(io::as_bytes("massage"), signature));
  EXPECT_FALSE(key.public_key().verify(io::as_bytes("message"), io::ByteSpan(signature).first(63)));
  EXPECT_FALSE(io::SigningKey::generate().public_key().verify(io::as_bytes("message"), signature));
}

/// Test 1 of RFC 8032, 7.1: the signature of an empty message.
TEST(SignatureTest, VerifiesTheSignatureOfTheStandard) {
  const auto bytes_of = [](const std::string& digits) {
    io::Bytes bytes;
    for (size_t i = 0; i < digits.size(); i += 2)
      bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
    return bytes;
  };
  io::PublicKey key;
  const auto raw = bytes_of("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  std::copy(raw.begin(), raw.end(), key.raw.begin());
  EXPECT_TRUE(key.verify({}, bytes_of("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac"
                                      "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b")));
}

TEST(SignatureTest, ReadsTheFilesThatItWrites) {
  const Folder folder;
  const auto key = io::SigningKey::generate(), second = io::SigningKey::generate();
  const mode_t before = ::umask(0);
  key.write_new(folder.path + "/key");
  ::umask(before);
  EXPECT_EQ(fs::status(folder.path + "/key").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(io::SigningKey::read(folder.path + "/key").public_key(), key.public_key());
  EXPECT_THAT(message_of([&] { key.write_new(folder.path + "/key"); }), HasSubstr("already exists"));
  const std::string both = "first\n" + key.public_key().pem() + "second\n" + second.public_key().pem();
  write_bytes(folder.path + "/both.pub", both);
  fs::permissions(folder.path + "/both.pub", fs::perms::owner_read);
  EXPECT_THAT(io::PublicKey::read(folder.path + "/both.pub"),
              ::testing::ElementsAre(key.public_key(), second.public_key()));
  EXPECT_THAT(message_of([&] { io::PublicKey::parse(both.substr(0, both.size() - 60), "x"); }),
              HasSubstr("x: key 2 is damaged"));
}

TEST(SignatureTest, RefusesFilesThatAreNoKeysOrThatOthersCanUse) {
  const Folder folder;
  const auto key = io::SigningKey::generate();
  const std::string path = folder.path + "/key";
  EXPECT_THAT(message_of([&] { io::SigningKey::read(path); }), HasSubstr("cannot open the key file " + path));
  key.write_new(path);
  EXPECT_THAT(message_of([&] { io::PublicKey::read(path); }), HasSubstr("contains a private key"));
  fs::permissions(path, fs::perms::group_read, fs::perm_options::add);
  EXPECT_THAT(message_of([&] { io::SigningKey::read(path); }), HasSubstr("chmod 600 '" + path + "'"));
  const std::string shown = folder.path + "/key.pub";
  write_bytes(shown, key.public_key().pem());
  fs::permissions(shown, fs::perms::owner_read | fs::perms::group_write);
  EXPECT_THAT(message_of([&] { io::PublicKey::read(shown); }), HasSubstr("can be written by other users (mode 420)"));
  fs::permissions(shown, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(message_of([&] { io::SigningKey::read(shown); }), HasSubstr("is not a private key"));
  fs::permissions(folder.path, fs::perms::others_write, fs::perm_options::add);
  EXPECT_THAT(message_of([&] { io::PublicKey::read(shown); }), HasSubstr("chmod go-w"));
  fs::permissions(folder.path, fs::perms::owner_all);
  write_bytes(shown, "no key");
  EXPECT_THAT(message_of([&] { io::PublicKey::read(shown); }), HasSubstr("contains no public key"));
  EXPECT_THAT(message_of([&] { io::PublicKey::read(folder.path); }), HasSubstr("is not a regular file"));
  write_bytes(shown, std::string(70000, 'x'));
  EXPECT_THAT(message_of([&] { io::PublicKey::read(shown); }), HasSubstr("expected at most 65536"));
  // An X25519 key, from RFC 8410, 10.3.
  EXPECT_THAT(message_of([&] {
                io::PublicKey::parse(
                    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
                    "-----END PUBLIC KEY-----\n",
                    "x");
              }),
              HasSubstr("expected a key of the algorithm Ed25519, got X25519"));
  if (::geteuid() != 0) return;  // only root can give files away
  ASSERT_EQ(::chown(path.c_str(), 12345, 0), 0);
  EXPECT_THAT(message_of([&] { io::SigningKey::read(path); }), HasSubstr("belongs to user 12345"));
}

}  // namespace
}  // namespace bellows::compile_detail::testing
