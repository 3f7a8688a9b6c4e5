#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "bellows/system/file.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

struct Target {
  const char* name;
  void (*run)(io::ByteSpan bytes);
};

constexpr Target targets[] = {
#define X(name) {#name, name},
    BELLOWS_FUZZ_TARGETS
#undef X
};

void PrintTo(const Target& target, std::ostream* out) {
  *out << target.name;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct Replay : testing::TestWithParam<Target> {};

}  // namespace

// A file that once crashed a parser is called in found/; what libFuzzer starts from, in corpus/.
TEST_P(Replay, CorpusAndWhatWasFound) {
  const std::string folder = BELLOWS_SOURCE_DIR "/tests/fuzz/";
  std::vector<std::string> files = files_in(folder + "corpus/" + GetParam().name);
  EXPECT_FALSE(files.empty()) << "no seed for " << GetParam().name;
  const std::vector<std::string> found = files_in(folder + "found/" + GetParam().name);
  files.insert(files.end(), found.begin(), found.end());
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const MappedFile mapped(file);
    const io::Bytes exact(mapped.bytes().begin(), mapped.bytes().end());  // so that sanitizers see its end
    EXPECT_NO_THROW(GetParam().run(exact));
  }
}

TEST(Replay, EveryFolderBelongsToATarget) {
  std::vector<std::string> absent;
#ifndef BELLOWS_HAS_SERVE
  absent.insert(absent.end(), {"infer_request", "serve_config"});
#endif
#ifndef BELLOWS_HAS_GRPC
  absent.emplace_back("infer_message");
#endif
  for (const char* kind : {"corpus", "found"}) {
    for (const std::string& folder : files_in(std::string(BELLOWS_SOURCE_DIR "/tests/fuzz/") + kind)) {
      const std::string name = std::filesystem::path(folder).filename();
      if (std::ranges::find(absent, name) != absent.end()) continue;
      EXPECT_TRUE(std::ranges::any_of(targets, [&](const Target& target) { return name == target.name; })) << folder;
    }
  }
}

// What no other test mutates.
TEST(Replay, FixedMutationsOfSmallTexts) {
  for (const Target& target : {
           Target{"dataset_json", dataset_json},
           Target{"subset", subset},
           Target{"example_fields", example_fields},
           Target{"http_headers", http_headers},
           Target{"checkpoint_index", checkpoint_index},
           Target{"kernel_bundle", kernel_bundle},
           Target{"public_key", public_key},
           Target{"quant_config", quant_config},
           Target{"quant_file", quant_file},
           Target{"quant_checkpoint", quant_checkpoint},
           Target{"teacher_cache", teacher_cache},
           Target{"exported_program", exported_program},
#ifdef BELLOWS_HAS_SERVE
           Target{"infer_request", infer_request},
           Target{"serve_config", serve_config},
#endif
#ifdef BELLOWS_HAS_GRPC
           Target{"infer_message", infer_message},
#endif
       }) {
    std::vector<io::Bytes> seeds;
    for (const std::string& file : files_in(std::string(BELLOWS_SOURCE_DIR "/tests/fuzz/corpus/") + target.name)) {
      const MappedFile mapped(file);
      seeds.emplace_back(mapped.bytes().begin(), mapped.bytes().end());
    }
    sample_fuzzing(seeds, target.run);
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, testing::ValuesIn(targets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace bellows::fuzz
