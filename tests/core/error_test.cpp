#include "bellows/core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "bellows/core/registry.h"

namespace bellows {

TEST(Error, NearestMatchFindsSlipsAndNothingElse) {
  const std::vector<std::string> keys = {"batch_size", "momentum", "epochs"};
  EXPECT_EQ(nearest_match("batchsize", keys), "batch_size");
  EXPECT_EQ(nearest_match("momentun", keys), "momentum");
  EXPECT_EQ(nearest_match("epoch", keys), "epochs");
  EXPECT_EQ(nearest_match("epcohs", keys), "epochs");
  EXPECT_EQ(nearest_match("colour", keys), "");
  EXPECT_EQ(did_you_mean("epoch", keys), " Did you mean \"epochs\"?");
  EXPECT_EQ(did_you_mean("colour", keys), "");
}

TEST(Error, UserMessageCarriesNoBacktrace) {
  try {
    TORCH_CHECK_VALUE(false, "load: expected 3, got ", 4);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_EQ(user_message(error), "load: expected 3, got 4");
  }
  EXPECT_EQ(user_message(std::runtime_error("plain")), "plain");
}

TEST(UserMessage, SaysWhatErrorsOfLibtorchMean) {
  const auto of = [](const std::string& text) { return user_message(std::runtime_error(text)); };
  EXPECT_THAT(of("DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes."),
              testing::AllOf(testing::StartsWith("Out of memory."), testing::HasSubstr("batch_size"),
                             testing::HasSubstr("123 bytes")));
  EXPECT_THAT(of("[enforce fail at alloc_cpu.cpp:121] err == 0."), testing::StartsWith("Out of memory."));
  EXPECT_THAT(of("Expected more than 1 value per channel when training, got input size [1, 8]"),
              testing::AllOf(testing::StartsWith("Batch norm cannot"), testing::HasSubstr("[1, 8]")));
  EXPECT_THAT(of("Resource temporarily unavailable"), testing::HasSubstr("ulimit -u"));
  EXPECT_EQ(of(of("Resource temporarily unavailable")), of("Resource temporarily unavailable")) << "said once";
  EXPECT_THAT(of("errno: 24 - Too many open files"),
              testing::HasSubstr("limit of open files. Raise the limit (ulimit -n)"));
  EXPECT_THAT(of("Failed to init uv loop"), testing::HasSubstr("ulimit -n"));
}

TEST(UserMessage, SaysThatOneDnnMayHaveRunOutOfMemory) {
  const auto of = [](const std::string& text) { return user_message(std::runtime_error(text)); };
  EXPECT_THAT(of("could not create a primitive"),
              testing::AllOf(testing::StartsWith("could not create a primitive (This often means that memory ran out;"),
                             testing::HasSubstr("`ulimit -v`"), testing::HasSubstr("batch_size")));
  EXPECT_EQ(of("could not create a primitive descriptor"), "could not create a primitive descriptor");
}

TEST(ErrnoMessage, NamesTheLimitOfOpenFiles) {
  EXPECT_EQ(errno_message(ENOSPC), "No space left on device (28)");
  EXPECT_THAT(errno_message(EMFILE), testing::MatchesRegex("Too many open files \\(24; this process may open [0-9]+ "
                                                           "files: raise the limit with `ulimit -n`\\)"));
}

TEST(Registry, KeepsOrderRefusesTwinsAndSuggests) {
  struct Row {
    std::string name;
    int value;
  };
  Registry<Row> registry("technique");
  const Row& first = registry.add({"channels_last", 1});
  registry.add({"bf16", 2});
  for (int i = 0; i < 100; ++i) registry.add({"filler" + std::to_string(i), i});
  EXPECT_EQ(first.value, 1) << "references outlive later additions";
  EXPECT_EQ(registry.at("bf16").value, 2);
  EXPECT_EQ(registry.rows()[1].name, "bf16");
  EXPECT_EQ(registry.find("nothing"), nullptr);
  EXPECT_THROW(registry.add({"bf16", 3}), c10::ValueError);
  try {
    registry.at("chanels_last");
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(user_message(error).find("Did you mean \"channels_last\"?"), std::string::npos);
  }
}

}  // namespace bellows
