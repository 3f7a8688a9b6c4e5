#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "bellows/io/archives/decompress.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/archives/zip.h"
#include "bellows/io/images/image.h"
#include "bellows/io/records/tfrecord.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/io/tensors/unpickler.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/io/support.h"

namespace bellows::io {

using HostileTest = FolderTest;
using fuzz::sample_fuzzing;

namespace {

using Parse = std::function<void(ByteSpan)>;

/// Every part of the file that ends early, copied so that reading past its end is seen by AddressSanitizer.
void expect_all_cuts_throw(const std::string& name, const Parse& parse, size_t whole = SIZE_MAX) {
  const std::string file = read_text_file(golden(name));
  for (size_t length = 0; length < std::min(whole, file.size()); ++length) {
    const Bytes cut(as_bytes(file).begin(), as_bytes(file).begin() + static_cast<std::ptrdiff_t>(length));
    bool thrown = false;
    try {
      parse(cut);
    } catch (const c10::ValueError&) {
      thrown = true;
    }
    ASSERT_TRUE(thrown) << name << " cut after " << length << " bytes passes";
  }
}

Bytes load(const std::string& name) {
  const MappedFile file(golden(name));
  return Bytes(file.bytes().begin(), file.bytes().end());
}

std::vector<Bytes> load_images() {
  std::vector<Bytes> images;
  for (const auto& entry : std::filesystem::directory_iterator(golden("images")))
    images.push_back(load("images/" + entry.path().filename().string()));
  std::sort(images.begin(), images.end());
  return images;
}

Bytes pickle_in(const std::string& name) {
  const MappedFile file(golden(name));
  const ZipReader zip(file.bytes(), name);
  for (const ZipEntry& entry : zip.entries()) {
    if (entry.name.ends_with("/data.pkl")) return Bytes(entry.data.begin(), entry.data.end());
  }
  return {};
}

std::string pickle_error(std::string_view text) {
  return value_error([&] { unpickle(as_bytes(text), "x", [](const PickleValue&) { return PickleValue(); }); });
}

/// Runs `action` in a child that may write files of at most 4096 bytes, as on a full disk, and returns the message of
/// what it throws.
std::string message_on_full_disk(const std::function<void()>& action) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message = "nothing was thrown";
    try {
      action();
    } catch (const c10::Error& error) {
      message = user_message(error);
    }
    const bool sent = ::write(ends[1], message.data(), message.size()) > 0;
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  std::string message(2000, '\0');
  message.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], message.data(), message.size()), 0)));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return message;
}

}  // namespace

TEST_F(HostileTest, CutFilesThrowWhereverTheyEnd) {
  // A tar archive is whole with the first of its closing zero blocks: 9 headers, and 1, 1, 1 + 2, 1, 1 + 3, 1, 1 blocks
  // of data.
  const size_t whole = TarReader(golden("shard.tar")).index().back().offset + 1024;
  expect_all_cuts_throw(
      "shard.tar", [](ByteSpan bytes) { TarReader(bytes, "x").index(); }, whole);
  expect_all_cuts_throw("shard.tar.gz", [](ByteSpan bytes) { decompress(bytes, "x"); });
  expect_all_cuts_throw("small.safetensors", [](ByteSpan bytes) { parse_safetensors_header(bytes, "x"); });
  expect_all_cuts_throw("all.safetensors", [](ByteSpan bytes) { parse_safetensors_header(bytes, "x"); });
  for (const char* name : {"flat.pt", "tricky.pt", "zip64.pt", "no_crc.pt"}) {
    expect_all_cuts_throw(name, [](ByteSpan bytes) { torch_load_bytes(bytes, "x"); });
  }
}

TEST_F(HostileTest, CutImagesThrowWhereverTheyEnd) {
  for (const auto& entry : std::filesystem::directory_iterator(golden("images"))) {
    expect_all_cuts_throw("images/" + entry.path().filename().string(), [](ByteSpan bytes) { decode_image(bytes); });
  }
}

TEST_F(HostileTest, MutatedArchives) {
  sample_fuzzing({load("shard.tar"), load("gnu.tar"), load("pax.tar")}, fuzz::tar);
}
TEST_F(HostileTest, MutatedCompressedFiles) {
  sample_fuzzing({load("shard.tar.gz")}, fuzz::compressed);
}
TEST_F(HostileTest, MutatedTorchFiles) {
  sample_fuzzing({load("no_crc.pt"), load("flat.pt"), load("zip64.pt"), load("big_endian.pt")}, fuzz::torch_file);
}
TEST_F(HostileTest, MutatedPickles) {
  sample_fuzzing({pickle_in("tricky.pt"), pickle_in("training.pt"), pickle_in("protocol4.pt")}, fuzz::pickle);
}
TEST_F(HostileTest, MutatedSafetensors) {
  sample_fuzzing({load("all.safetensors"), load("small.safetensors")}, fuzz::safetensors);
}
TEST_F(HostileTest, MutatedImages) {
  sample_fuzzing(load_images(), fuzz::image);
}

TEST_F(HostileTest, MutatedEventFiles) {
  const Bytes file = load("events/summary_writer.tfevents");
  std::vector<Bytes> seeds{file, load("events/other.tfevents")};
  TfrecordReader records(as_text(file), "golden");
  while (const auto message = records.next()) seeds.emplace_back(as_bytes(*message).begin(), as_bytes(*message).end());
  sample_fuzzing(seeds, fuzz::event_file);
}

TEST_F(HostileTest, PicklesCannotTrickTheMachine) {
  using std::string_view_literals::operator""sv;
  EXPECT_TRUE(has(pickle_error("\x80\x02]q\0h\0a."sv), "a container contains itself"));
  EXPECT_TRUE(has(pickle_error("\x80\x02]q\0h\0a0N."sv), "a container contains itself"))
      << "also one that is thrown away";
  EXPECT_TRUE(has(pickle_error("\x80\x02N" + std::string(100'000, '\x85') + "."), "nested deeper than 256"));
  EXPECT_TRUE(has(pickle_error("\x80\x02N" + std::string(100'000, '\x85')), "truncated"))
      << "a deep value is destroyed without recursion";
  EXPECT_TRUE(has(pickle_error("\x80\x02"
                               "cos\nsystem\nX\x02\0\0\0ls\x85R."sv),
                  "an object of \"os.system\""));
  EXPECT_TRUE(has(pickle_error("\x80\x02"
                               "ctorch\nfloat32\n)R."sv),
                  "expected a supported function"));
  EXPECT_TRUE(has(pickle_error("\x80\x02"
                               "ctorch\nSize\n."sv),
                  "expected data, found the class or function torch.Size"));
  EXPECT_TRUE(has(pickle_error("\x80\x02X\xff\xff\xff\xff"
                               "ab."sv),
                  "expected 4294967295 more bytes, found 3"));
  EXPECT_TRUE(has(pickle_error("\x80\x02\x8a\x09"
                               "123456789."sv),
                  "does not fit into 64 bits"));
  EXPECT_TRUE(has(pickle_error("\x80\x02(K\1u."sv), "corrupt"));
  EXPECT_TRUE(has(pickle_error("\x80\x02h\7."sv), "the memo has no entry 7"));
  EXPECT_TRUE(has(pickle_error("\x80\x02"
                               "ctorch._utils\n_rebuild_tensor_v2\n(NK\0))\x89NtR."sv),
                  "expected a storage, found None"));
}

TEST_F(HostileTest, FullDiskLeavesNothingAndSaysSo) {
  const PickleValue value(NamedTensors{{"w", at::zeros({5000})}});
  for (const char* name : {"full.pt", "full.safetensors", "full.tar"}) {
    const std::string file = path(name), kind(name);
    const std::string message = message_on_full_disk([&] {
      if (kind == "full.pt") return torch_save(file, value);
      if (kind == "full.safetensors") return save_safetensors(file, {{"w", value.at("w").as_tensor()}});
      TarWriter writer(file);
      writer.add("a", std::string(5000, 'x'));
    });
    EXPECT_TRUE(has(message, "cannot write " + file + " at byte 4096: File too large")) << message;
    EXPECT_FALSE(std::filesystem::exists(file));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_FALSE(has(entry.path().filename(), "full.")) << entry;
}

TEST_F(HostileTest, UnwritableFoldersAreNamed) {
  write_text_file(path("file"), "x");
  for (const std::string& below : {path("missing") + "/w", path("file") + "/w", std::string("/proc/w")}) {
    for (const bool torch : {false, true}) {
      std::string message;
      try {
        torch ? torch_save(below, 1) : save_safetensors(below, {});
      } catch (const c10::Error& error) {
        message = user_message(error);
      }
      EXPECT_TRUE(has(message, "cannot write " + below) && has(message, "must exist and be writable")) << message;
    }
  }
}

}  // namespace bellows::io
