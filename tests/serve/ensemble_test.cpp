#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "bellows/serve/repository.h"
#include "bellows/serve/tensor_types.h"
#include "tests/serve/requests.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Map = std::vector<std::pair<std::string, std::string>>;

std::string step(const std::string& model, const Map& inputs, const Map& outputs, int version = -1) {
  std::string text = "step { model_name: \"" + model + "\" model_version: " + std::to_string(version);
  for (const auto& [key, value] : inputs) text += " input_map { key: \"" + key + "\" value: \"" + value + "\" }";
  for (const auto& [key, value] : outputs) text += " output_map { key: \"" + key + "\" value: \"" + value + "\" }";
  return text + " } ";
}

std::string ensemble(const std::string& steps, const std::string& head = "max_batch_size: 4") {
  return "platform: \"ensemble\" " + head + R"( input { name: "in" data_type: TYPE_FP32 dims: 4 }
    output { name: "out" data_type: TYPE_FP32 dims: 4 } ensemble_scheduling { )" +
         steps + "}";
}

/// The ensemble "a" computes 6 * x with "double" and "triple".
const std::string chain =
    ensemble(step("triple", {{"x", "middle"}}, {{"y", "out"}}) + step("double", {{"x", "in"}}, {{"y", "middle"}}));

class EnsembleTest : public testing::Test {
 protected:
  void SetUp() override {
    add("double", "scale 2");
    add("triple", "scale 3");
    add("gated", "gated");
    add("strict", "strict");
    add("sum", "sum");
  }
  void add(const std::string& name, const std::string& model, const std::string& config = "max_batch_size: 4") {
    folder_.write(name + "/config.pbtxt", config);
    folder_.write(name + "/1/model.test", model);
  }
  void add_ensemble(const std::string& name, const std::string& config) {
    folder_.write(name + "/config.pbtxt", config);
  }
  Repository& open() {
    repository_ = std::make_unique<Repository>(folder_.path(), test_loader(), LoadModelOptions{});
    repository_->load_all();
    return *repository_;
  }
  /// Loads the ensemble "a" with this configuration, and returns the error.
  std::string problem(const std::string& config) {
    add_ensemble("a", config);
    try {
      open().load("a");
    } catch (const RequestError& error) {
      return error.what();
    }
    return "";
  }
  std::future<InferenceResult> submit(const std::string& name, float value = 1,
                                      const std::function<void(PendingRequest&)>& change = {}) {
    auto promise = std::make_shared<std::promise<InferenceResult>>();
    PendingRequest request = request_of({at::full({1, 4}, value)},
                                        [promise](InferenceResult result) { promise->set_value(std::move(result)); });
    if (change) change(request);
    EXPECT_EQ(repository_->find(name, "")->submit(request), Scheduler::Submitted::queued);
    return promise->get_future();
  }
  static float value(std::future<InferenceResult> answer) {
    const InferenceResult result = answer.get();
    EXPECT_FALSE(result.error) << result.error->what();
    return result.error ? -1 : result.outputs.at(0).flatten()[0].item<float>();
  }
  static std::string error(std::future<InferenceResult> answer) {
    const InferenceResult result = answer.get();
    return result.error ? std::to_string(result.error->status()) + " " + result.error->what() : "";
  }
  std::string state_of(const std::string& name) const {
    for (const IndexEntry& entry : repository_->index()) {
      if (entry.name == name) return entry.state + " " + entry.reason;
    }
    return "absent";
  }
  TestFolder& folder() { return folder_; }

 private:
  TestFolder folder_;
  std::unique_ptr<Repository> repository_{};
};

}  // namespace

TEST_F(EnsembleTest, RunsStepsInTheOrderOfTheirTensors) {
  add_ensemble("a", chain);
  open();
  EXPECT_EQ(value(submit("a")), 6);
}

TEST_F(EnsembleTest, UsesTheVersionOfAStep) {
  folder().write("double/config.pbtxt", "max_batch_size: 4 version_policy { all { } }");
  folder().write("double/2/model.test", "scale 20");
  add_ensemble("a", ensemble(step("double", {{"x", "in"}}, {{"y", "out"}})));
  add_ensemble("b", ensemble(step("double", {{"x", "in"}}, {{"y", "out"}}, /*version=*/1)));
  open();
  EXPECT_EQ(value(submit("a")), 20);
  EXPECT_EQ(value(submit("b")), 2);
}

TEST_F(EnsembleTest, RunsIndependentStepsAtTheSameTime) {
  add("gated2", "gated");
  add_ensemble("a",
               "platform: \"ensemble\" max_batch_size: 4 input { name: \"in\" data_type: TYPE_FP32 dims: 4 }"
               "output [ { name: \"one\" data_type: TYPE_FP32 dims: 4 },"
               "{ name: \"two\" data_type: TYPE_FP32 dims: 4 } ] ensemble_scheduling { " +
                   step("gated", {{"x", "in"}}, {{"y", "one"}}) + step("gated2", {{"x", "in"}}, {{"y", "two"}}) + "}");
  open();
  std::future<InferenceResult> answer;
  {
    const ClosedGate closed;
    answer = submit("a", 5);
    gate().wait_for_arrivals(2);  // both steps run
  }
  EXPECT_EQ(value(std::move(answer)), 5);
}

TEST_F(EnsembleTest, ContainsEnsembles) {
  add_ensemble("a", ensemble(step("b", {{"in", "in"}}, {{"out", "middle"}}) +
                             step("double", {{"x", "middle"}}, {{"y", "out"}})));
  add_ensemble("b", chain);
  open();
  EXPECT_EQ(value(submit("a")), 12);
}

TEST_F(EnsembleTest, PassesTextsOn) {
  const char* const tokenizer = R"(max_batch_size: 4 parameters { key: "tokenizer" value: { string_value: "bytes" } })";
  add("tokens", "tokens", tokenizer);
  add_ensemble("a", R"(platform: "ensemble" max_batch_size: 4 input { name: "in" data_type: TYPE_STRING dims: 1 }
    output [ { name: "numbers" data_type: TYPE_FP32 dims: 2 }, { name: "in" data_type: TYPE_STRING dims: 1 } ]
    ensemble_scheduling { )" +
                        step("tokens", {{"text", "in"}}, {{"y", "numbers"}}) + "}");
  open();
  const InferenceResult result = submit("a", 0, [](PendingRequest& request) {
                                   request.inputs = {at::Tensor()};
                                   request.bytes = {std::make_shared<BytesTensor>(BytesTensor{{1, 1}, {"a"}})};
                                 }).get();
  ASSERT_FALSE(result.error) << result.error->what();
  EXPECT_EQ(result.outputs.at(0).flatten()[1].item<float>(), 3);
  EXPECT_THAT(result.bytes.at(1)->values, ElementsAre("a"));
}

TEST_F(EnsembleTest, RejectsStepsThatDoNotFit) {
  const auto rejects = [&](const std::string& steps, const std::string& part) {
    EXPECT_THAT(problem(ensemble(steps)), HasSubstr(part));
  };
  rejects("", "at least one step");
  rejects(step("none", {{"x", "in"}}, {{"y", "out"}}), "step 1 (model \"none\"): unknown model");
  rejects(step("double", {{"x", "in"}}, {{"y", "out"}}, 7), "no version \"7\"");
  rejects(step("double", {}, {{"y", "out"}}), "no entry for the input \"x\"");
  rejects(step("double", {{"x", "in"}, {"q", "in"}}, {{"y", "out"}}), "input_map: the model has no tensor \"q\"");
  rejects(step("double", {{"x", "in"}}, {{"q", "out"}}), "output_map: the model has no tensor \"q\"");
  rejects(step("double", {{"x", "lost"}}, {{"y", "out"}}), "the tensor \"lost\" is neither");
  rejects(step("double", {{"x", "in"}}, {{"y", "other"}}),
          "output \"out\" of the ensemble: the tensor \"out\" is neither");
  rejects(step("double", {{"x", "in"}}, {{"y", "in"}}), "comes from the ensemble's inputs and from step 1");
  rejects(step("double", {{"x", "in"}}, {{"y", "out"}}) + step("triple", {{"x", "in"}}, {{"y", "out"}}),
          "comes from step 1 (model \"double\") and from step 2 (model \"triple\")");
  rejects(step("double", {{"x", "b"}}, {{"y", "out"}}) + step("triple", {{"x", "out"}}, {{"y", "b"}}),
          "wait for each other's results: step 1 (model \"double\"), step 2 (model \"triple\")");
  rejects(step("sum", {{"a", "in"}, {"b", "in"}}, {{"total", "out"}}), "expected INT64, but the tensor \"in\"");
  EXPECT_THAT(problem(ensemble(step("double", {{"x", "in"}}, {{"y", "out"}}), "max_batch_size: 8")),
              HasSubstr("max_batch_size is 4, which is less than 8"));
  EXPECT_THAT(problem(ensemble(step("a", {{"in", "in"}}, {{"out", "out"}}))), HasSubstr("uses itself"));
  EXPECT_THAT(problem(R"(platform: "ensemble" max_batch_size: 4 input { name: "in" data_type: TYPE_FP32 dims: 3 }
    output { name: "out" data_type: TYPE_FP32 dims: 4 } ensemble_scheduling { )" +
                      step("double", {{"x", "in"}}, {{"y", "out"}}) + "}"),
              HasSubstr("expected the shape [-1, 4], but the tensor \"in\" from the ensemble's inputs has [-1, 3]"));
  EXPECT_THAT(problem("platform: \"ensemble\""), HasSubstr("at least one step"));
  EXPECT_THAT(
      problem(ensemble(step("double", {{"x", "in"}}, {{"y", "out"}}), "max_batch_size: 4 dynamic_batching { }")),
      HasSubstr("an ensemble has no dynamic_batching"));
}

TEST_F(EnsembleTest, RejectsEnsemblesThatUseEachOther) {
  add_ensemble("a", ensemble(step("b", {{"in", "in"}}, {{"out", "out"}})));
  add_ensemble("b", ensemble(step("a", {{"in", "in"}}, {{"out", "out"}})));
  open();
  EXPECT_THAT(state_of("a"), HasSubstr("UNAVAILABLE"));
  EXPECT_THAT(state_of("b"), HasSubstr("UNAVAILABLE"));
}

TEST_F(EnsembleTest, ErrorsNameTheStep) {
  add_ensemble("a", ensemble(step("double", {{"x", "in"}}, {{"y", "middle"}}) +
                             step("strict", {{"x", "middle"}}, {{"y", "out"}})));
  open();
  EXPECT_EQ(error(submit("a", -1)), "500 step 2 (model \"strict\"): the model failed: negative value");
  EXPECT_EQ(value(submit("a", 2)), 4);
}

TEST_F(EnsembleTest, CancelsBetweenSteps) {
  add_ensemble("a", ensemble(step("gated", {{"x", "in"}}, {{"y", "middle"}}) +
                             step("double", {{"x", "middle"}}, {{"y", "out"}})));
  open();
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  std::future<InferenceResult> answer;
  {
    const ClosedGate closed;
    answer = submit("a", 1, [&](PendingRequest& request) { request.cancelled = cancelled; });
    gate().wait_for_arrivals(1);
    *cancelled = true;
  }
  EXPECT_THAT(error(std::move(answer)), HasSubstr("499 step 2 (model \"double\"): the request was cancelled"));
}

TEST_F(EnsembleTest, TimesOutBetweenSteps) {
  add_ensemble("a", ensemble(step("gated", {{"x", "in"}}, {{"y", "middle"}}) +
                             step("double", {{"x", "middle"}}, {{"y", "out"}})));
  open();
  std::future<InferenceResult> answer;
  {
    const ClosedGate closed;
    answer = submit("a", 1, [](PendingRequest& request) { request.timeout_us = 1000; });
    gate().wait_for_arrivals(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_THAT(error(std::move(answer)), HasSubstr("503 step 2 (model \"double\"): the request timed out"));
}

TEST_F(EnsembleTest, KeepsTheVersionsThatARequestUses) {
  add_ensemble("a", ensemble(step("gated", {{"x", "in"}}, {{"y", "middle"}}) +
                             step("double", {{"x", "middle"}}, {{"y", "out"}})));
  Repository& repository = open();
  std::future<InferenceResult> answer;
  std::future<void> unloaded;
  {
    const ClosedGate closed;
    answer = submit("a");
    gate().wait_for_arrivals(1);
    unloaded = std::async(std::launch::async, [&] { repository.unload("double"); });
    while (state_of("a").starts_with("READY")) std::this_thread::yield();
  }
  EXPECT_EQ(value(std::move(answer)), 2) << "the last step runs on the version that is being unloaded";
  unloaded.get();
}

TEST_F(EnsembleTest, FollowsItsModels) {
  add_ensemble("a", chain);
  Repository& repository = open();
  repository.unload("double");
  EXPECT_EQ(state_of("a"), "UNAVAILABLE the model \"double\" of a step was unloaded");
  EXPECT_THROW(repository.find("a", ""), RequestError);
  repository.load("double");
  EXPECT_EQ(state_of("a"), "READY ");
  EXPECT_EQ(value(submit("a")), 6);
  folder().write("double/1/model.test", "scale 10");
  repository.load("double");
  EXPECT_EQ(value(submit("a")), 30);
  folder().write("double/1/model.test", "sum");
  repository.load("double");
  EXPECT_THAT(state_of("a"), HasSubstr("UNAVAILABLE"));
  repository.unload("a");
  folder().write("double/1/model.test", "scale 2");
  repository.load("double");
  EXPECT_EQ(state_of("a"), "UNAVAILABLE unloaded") << "it was unloaded by the user";
  repository.unload("triple");
  repository.load("a");
  EXPECT_EQ(value(submit("a")), 6) << "models that are not ready are loaded before the ensemble";
}

TEST_F(EnsembleTest, CountsItsRequests) {
  add_ensemble("a", chain);
  Repository& repository = open();
  value(submit("a"));
  value(submit("a"));
  const StatisticsValues values = repository.find("a", "")->statistics().values();
  EXPECT_EQ(values.success.count, 2u);
  EXPECT_EQ(values.inferences, 2u);
  EXPECT_EQ(repository.find("double", "")->statistics().values().success.count, 2u);
}

}  // namespace bellows::serve
