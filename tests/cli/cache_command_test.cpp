#include <gmock/gmock.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/system/file.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"

namespace bellows::cli {

using ::testing::AllOf;
using ::testing::HasSubstr;

namespace {

/// A folder with a cache of two kernels, which another process compiled, and a key pair.
struct CacheFolder : Scratch {
  CacheFolder() {
    compile_detail::KernelCache cache({.folder = from() + "/kernels"});
    for (const char* source : {"extern \"C\" int one() { return 1; }\n", "extern \"C\" int two() { return 2; }\n"})
      cache.load(source);
    made = run({"keygen", key}, from());
  }
  std::string from() const { return *this / "from"; }
  std::string to() const { return *this / "to"; }
  /// Runs `bellows cache` with a cache folder.
  static Outcome run(std::vector<std::string> arguments, const std::string& cache, const std::string& trusted = "") {
    arguments.insert(arguments.begin(), "cache");
    return run_bellows(arguments, {"BELLOWS_CACHE=" + cache, "BELLOWS_TRUSTED_KEYS=" + trusted});
  }
  std::string key = *this / "publisher.key", bundle = *this / "kernels.bundle";
  Outcome made;
};

}  // namespace

TEST(CacheCommand, MovesKernelsToAnotherCache) {
  const CacheFolder folder;
  ASSERT_EQ(folder.made.exit_code, 0) << folder.made.err;
  EXPECT_THAT(folder.made.out, AllOf(HasSubstr("Private key: " + folder.key), HasSubstr(folder.key + ".pub\n"),
                                     HasSubstr("Fingerprint: SHA256:")));
  EXPECT_EQ(std::filesystem::status(folder.key).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const Outcome exported = folder.run({"export", folder.bundle, "--key", folder.key}, folder.from());
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_THAT(exported.out,
              AllOf(HasSubstr("Exported 2 kernels to " + folder.bundle), HasSubstr("signed with SHA256:")));
  const Outcome imported = folder.run({"import", folder.bundle, "--key", folder.key + ".pub"}, folder.to());
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("Imported 2 kernels into " + folder.to() + "/kernels"));
  const Outcome again = folder.run({"import", folder.bundle}, folder.to(), folder.key + ".pub");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("Imported 0 kernels"), HasSubstr("already had 2 kernels")));
  const Outcome list = folder.run({"list", "--json"}, folder.to());
  const auto json = nlohmann::json::parse(list.out);
  EXPECT_EQ(json["folder"], folder.to() + "/kernels");
  ASSERT_EQ(json["entries"].size(), 2u);
  EXPECT_EQ(json["entries"][0]["state"], "usable");
  EXPECT_EQ(json["entries"][0]["usable"], true);
  EXPECT_THAT(folder.run({"list"}, folder.to()).out, AllOf(HasSubstr("2 entries, "), HasSubstr("  usable\n")));
  EXPECT_THAT(folder.run({"clear"}, folder.to()).out, HasSubstr("Deleted 2 kernels from "));
  EXPECT_EQ(nlohmann::json::parse(folder.run({"clear", "--json"}, folder.to()).out)["deleted"], 0);
  EXPECT_THAT(folder.run({"list"}, folder.to()).out, HasSubstr("0 entries, "));
}

TEST(CacheCommand, RefusesWhatIsNotTrusted) {
  const CacheFolder folder;
  ASSERT_EQ(folder.run({"export", folder.bundle, "--key", folder.key}, folder.from()).exit_code, 0);
  const std::string other = folder / "other.key";
  ASSERT_EQ(folder.run({"keygen", other}, folder.from()).exit_code, 0);
  const auto import_with = [&](const std::string& key) {
    return folder.run({"import", folder.bundle, "--key", key}, folder.to());
  };
  expect_failure(import_with(other + ".pub"), 1, "which is not trusted");
  expect_failure(import_with(folder.key), 1, "contains a private key");
  expect_failure(import_with(folder / "none"), 1, "cannot open the key file");
  expect_failure(folder.run({"import", folder.bundle}, folder.to()), 2, "BELLOWS_TRUSTED_KEYS");
  const std::string whole = read_text_file(folder.bundle);
  std::string changed = whole;
  changed[changed.size() / 2] ^= 1;
  std::ofstream(folder.bundle, std::ios::binary) << changed;
  expect_failure(import_with(folder.key + ".pub"), 1, "was changed after it was signed");
  std::ofstream(folder.bundle, std::ios::binary) << whole.substr(0, whole.size() / 2);
  expect_failure(import_with(folder.key + ".pub"), 1, "is truncated");
  std::ofstream(folder.bundle, std::ios::binary) << whole;
  ::chmod((folder.key + ".pub").c_str(), 0666);
  expect_failure(import_with(folder.key + ".pub"), 1, "can be written by other users (mode 666)");
  ::chmod(folder.key.c_str(), 0644);
  expect_failure(folder.run({"export", folder.bundle, "--key", folder.key}, folder.from()), 1, "chmod 600");
  EXPECT_EQ(read_text_file(folder.bundle), whole) << "a failure changed the bundle";
  EXPECT_FALSE(std::filesystem::exists(folder.to())) << "something was imported";
}

TEST(CacheCommand, WrongUseAndFailures) {
  const CacheFolder folder;
  EXPECT_EQ(folder.run({}, folder.from()).exit_code, 2);
  EXPECT_EQ(folder.run({"export", folder.bundle}, folder.from()).exit_code, 2);
  EXPECT_EQ(folder.run({"import"}, folder.from()).exit_code, 2);
  expect_failure(folder.run({"keygen", folder.key}, folder.from()), 1, "already exists");
  expect_failure(folder.run({"export", folder.bundle, "--key", folder.key}, folder.to()), 1, "has no kernels");
  expect_failure(folder.run({"import", folder / "none", "--key", folder.key + ".pub"}, folder.to()), 1,
                 folder / "none");
}

}  // namespace bellows::cli
