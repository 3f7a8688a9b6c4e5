#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <thread>

#include "bellows/serve/repository.h"
#include "tests/serve/requests.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Repository> open(const TestFolder& folder) {
  return std::make_unique<Repository>(folder.path(), test_loader(), LoadModelOptions{});
}

/// Runs a model on ones, and returns the first value of the output.
float answer(Repository& repository, const std::string& name, const std::string& version = "") {
  std::promise<InferenceResult> promise;
  PendingRequest request =
      request_of({at::ones({1, 4})}, [&](InferenceResult result) { promise.set_value(std::move(result)); });
  EXPECT_EQ(repository.find(name, version)->submit(request), Scheduler::Submitted::queued);
  const InferenceResult result = promise.get_future().get();
  EXPECT_FALSE(result.error);
  return result.outputs.at(0).flatten()[0].item<float>();
}

std::string state_of(const Repository& repository, const std::string& name, const std::string& version) {
  for (const IndexEntry& entry : repository.index()) {
    if (entry.name == name && entry.version == version) return entry.state + " " + entry.reason;
  }
  return "absent";
}

int status_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const RequestError& error) {
    return error.status();
  }
  return 0;
}

}  // namespace

TEST(Repository, LoadsAllModels) {
  const TestFolder folder;
  folder.write("one/1/model.test", "scale 2");
  folder.write("two/config.pbtxt", "max_batch_size: 4 version_policy { all { } }");
  folder.write("two/1/model.test", "scale 3");
  folder.write("two/10/model.test", "scale 4");
  folder.write("README.txt", "a file");
  const auto repository = open(folder);
  repository->load_all();
  EXPECT_EQ(answer(*repository, "one"), 2);
  EXPECT_EQ(answer(*repository, "two"), 4) << "the newest version is the default";
  EXPECT_EQ(answer(*repository, "two", "1"), 3);
  EXPECT_THAT(repository->ready_versions("two"), ElementsAre("1", "10"));
  EXPECT_EQ(status_of([&] { repository->find("three", ""); }), status_not_found);
  EXPECT_EQ(status_of([&] { repository->find("two", "2"); }), status_not_found);
  EXPECT_EQ(status_of([&] { repository->find("two", "01"); }), status_not_found);
}

TEST(Repository, LoadsOnlyTheNamedModels) {
  const TestFolder folder;
  folder.write("one/1/model.test", "identity");
  folder.write("two/1/model.test", "identity");
  const auto repository = open(folder);
  repository->load_all({"two", "missing"});
  EXPECT_EQ(state_of(*repository, "one", ""), "UNAVAILABLE not loaded");
  EXPECT_EQ(state_of(*repository, "two", "1"), "READY ");
  EXPECT_THAT(state_of(*repository, "missing", ""), HasSubstr("has no model"));
}

TEST(Repository, ReportsCorruptModelsAndConfigurations) {
  const TestFolder folder;
  folder.write("good/1/model.test", "identity");
  folder.write("damaged/1/model.test", "?");
  folder.write("config/config.pbtxt", "max_batch_size: many");
  folder.write("config/1/model.test", "identity");
  folder.write("empty/config.pbtxt", "");
  folder.write("double/1/model.test", "identity");
  folder.write("double/1/model.other", "identity");
  folder.write("renamed/config.pbtxt", "name: \"other\"");
  folder.write("renamed/1/model.test", "identity");
  folder.write("labels/config.pbtxt",
               R"(output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] label_filename: "none.txt" })");
  folder.write("labels/1/model.test", "identity");
  folder.write("cold/config.pbtxt",
               R"(model_warmup { name: "w" inputs { key: "q" value { data_type: TYPE_FP32 zero_data: true } } })");
  folder.write("cold/1/model.test", "identity");
  const auto repository = open(folder);
  repository->load_all();
  EXPECT_EQ(answer(*repository, "good"), 1);
  EXPECT_THAT(state_of(*repository, "damaged", "1"), HasSubstr("damaged model file"));
  EXPECT_THAT(state_of(*repository, "config", ""), HasSubstr("config.pbtxt:1"));
  EXPECT_THAT(state_of(*repository, "empty", ""), HasSubstr("expected folders 1, 2"));
  EXPECT_THAT(state_of(*repository, "double", "1"), HasSubstr("found 2"));
  EXPECT_THAT(state_of(*repository, "renamed", ""), HasSubstr("other"));
  EXPECT_THAT(state_of(*repository, "labels", ""), HasSubstr("none.txt"));
  EXPECT_THAT(state_of(*repository, "cold", "1"), HasSubstr("model_warmup"));
  EXPECT_EQ(status_of([&] { repository->find("damaged", ""); }), status_bad_request);
}

TEST(Repository, RejectsNamesThatLeaveTheFolder) {
  const TestFolder folder;
  folder.write("one/1/model.test", "identity");
  const auto repository = open(folder);
  for (const std::string& name :
       {std::string(".."), std::string("."), std::string(""), std::string("one/../one"), std::string("one\0x", 5)})
    EXPECT_EQ(status_of([&] { repository->load(name); }), status_not_found) << name;
  EXPECT_THROW(Repository(folder.path() + "/none", test_loader(), {}), c10::ValueError);
}

TEST(Repository, LoadsChangedFilesOnly) {
  const TestFolder folder;
  folder.write("m/1/model.test", "scale 2");
  const auto repository = open(folder);
  repository->load("m");
  const auto first = repository->find("m", "");
  repository->load("m");
  EXPECT_EQ(repository->find("m", ""), first);
  folder.write("m/1/model.test", "scale 50");
  repository->load("m");
  EXPECT_NE(repository->find("m", ""), first);
  EXPECT_EQ(answer(*repository, "m"), 50);
  EXPECT_EQ(repository->find("m", "")->statistics().values().success.count, 1u);
}

TEST(Repository, ANewVersionReplacesTheOldOne) {
  const TestFolder folder;
  folder.write("m/1/model.test", "scale 2");
  const auto repository = open(folder);
  repository->load_all();
  folder.write("m/2/model.test", "scale 3");
  EXPECT_EQ(answer(*repository, "m"), 2);
  repository->poll();
  EXPECT_EQ(answer(*repository, "m"), 3);
  EXPECT_EQ(state_of(*repository, "m", "1"), "UNAVAILABLE unloaded");
  EXPECT_EQ(status_of([&] { repository->find("m", "1"); }), status_bad_request);
}

TEST(Repository, AFailedReloadKeepsTheOldModel) {
  const TestFolder folder;
  folder.write("m/1/model.test", "scale 2");
  const auto repository = open(folder);
  repository->load("m");
  folder.write("m/1/model.test", "damaged");
  EXPECT_EQ(status_of([&] { repository->load("m"); }), status_bad_request);
  EXPECT_EQ(answer(*repository, "m"), 2);
  EXPECT_THAT(state_of(*repository, "m", "1"), HasSubstr("READY damaged"));
  folder.write("m/1/model.test", "scale 4");
  repository->load("m");
  EXPECT_EQ(answer(*repository, "m"), 4);
  EXPECT_EQ(state_of(*repository, "m", "1"), "READY ");
}

TEST(Repository, UnloadWaitsForAcceptedRequests) {
  const TestFolder folder;
  folder.write("m/1/model.test", "gated");
  const auto repository = open(folder);
  repository->load("m");
  gate().close();
  auto running = std::async(std::launch::async, [&] { return answer(*repository, "m"); });
  gate().wait_for_arrivals(1);
  auto unload = std::async(std::launch::async, [&] { repository->unload("m"); });
  while (!repository->ready_versions("m").empty()) std::this_thread::yield();
  EXPECT_NE(unload.wait_for(std::chrono::milliseconds(20)), std::future_status::ready);
  gate().open();
  unload.get();
  EXPECT_EQ(running.get(), 1);
  EXPECT_EQ(status_of([&] { repository->find("m", ""); }), status_bad_request);
  EXPECT_EQ(status_of([&] { repository->unload("other"); }), status_not_found);
  repository->poll();
  EXPECT_TRUE(repository->ready_versions("m").empty()) << "unloaded models stay unloaded";
  repository->load("m");
  EXPECT_EQ(answer(*repository, "m"), 1);
}

TEST(Repository, PollFindsNewAndDeletedModels) {
  const TestFolder folder;
  folder.write("one/1/model.test", "identity");
  const auto repository = open(folder);
  repository->load_all();
  folder.write("two/1/model.test", "scale 7");
  std::filesystem::remove_all(folder.path() + "/one");
  repository->poll();
  EXPECT_EQ(answer(*repository, "two"), 7);
  EXPECT_EQ(status_of([&] { repository->find("one", ""); }), status_not_found);
}

TEST(Repository, RunsWarmupRequests) {
  const TestFolder folder;
  folder.write("m/config.pbtxt", R"(max_batch_size: 4 model_warmup { name: "w" batch_size: 3 count: 2
    inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 random_data: true } } })");
  folder.write("m/1/model.test", "identity");
  const auto repository = open(folder);
  take_batch_sizes();
  repository->load("m");
  EXPECT_THAT(take_batch_sizes(), ElementsAre(3, 3));
}

// Clients run while versions come and go. No request is lost, and each answer is that of a version.
TEST(Repository, ReloadsUnderLoad) {
  const TestFolder folder;
  folder.write("m/1/model.test", "scale 2");
  const auto repository = open(folder);
  repository->load("m");
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, answers{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      while (!stop) {
        std::promise<InferenceResult> promise;
        PendingRequest request{.done = [&](InferenceResult result) { promise.set_value(std::move(result)); }};
        request.inputs.push_back(at::ones({1, 4}));
        if (repository->find("m", "")->submit(request) != Scheduler::Submitted::queued) continue;  // find the new one
        const InferenceResult result = promise.get_future().get();
        const float value = result.error ? 0 : result.outputs.at(0).flatten()[0].item<float>();
        if (value < 2 || value > 11) ++wrong;
        ++answers;
      }
    });
  }
  for (int version = 2; version <= 10; ++version) {
    folder.write("m/" + std::to_string(version) + "/model.test", "scale " + std::to_string(version + 1));
    const int before = answers;
    repository->load("m");
    while (answers < before + 20) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(answer(*repository, "m"), 11);
}

}  // namespace bellows::serve
