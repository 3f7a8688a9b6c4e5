#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "bellows/serve/sequence/sequence_scheduler.h"
#include "bellows/serve/server.h"
#include "tests/serve/raw_client.h"
#include "tests/serve/requests.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using std::chrono::microseconds;
using testing::ElementsAre;
using testing::HasSubstr;

SequenceOptions options_of(int64_t max_batch_size, std::vector<SequenceState> states = {}) {
  return {.max_batch_size = max_batch_size,
          .sequences = {.max_idle_us = 1000, .states = std::move(states)},
          .outputs = 1,
          .max_queue_size = 8,
          .model = "m"};
}

PendingRequest sequence_request(SequenceFlags flags, int64_t width = 1) {
  PendingRequest request = request_of({at::full({1, width}, static_cast<double>(flags.id))});
  request.sequence = flags;
  return request;
}

constexpr bool yes = true, no = false;

void add(SequenceQueue& queue, uint64_t id, bool start, bool end, Clock::time_point now) {
  PendingRequest request = sequence_request({id, start, end});
  ASSERT_TRUE(queue.push(request, now));
}

/// Takes a batch and finishes it. Returns pairs of slot and sequence.
std::vector<std::pair<size_t, uint64_t>> run(SequenceQueue& queue, size_t instance, Clock::time_point now) {
  std::vector<std::pair<size_t, uint64_t>> rows;
  for (SequenceRow& row : queue.take_batch(instance, now)) {
    rows.emplace_back(row.slot, row.request.sequence.id);
    queue.finish(instance, row.slot, row.request.sequence.end, std::move(row.states), now);
  }
  return rows;
}

std::string push_problem(SequenceQueue& queue, PendingRequest request) {
  return error_of(status_bad_request, [&] { queue.push(request, Clock::now()); });
}

using Rows = std::vector<std::pair<size_t, uint64_t>>;

}  // namespace

TEST(SequenceQueue, KeepsASequenceInItsSlot) {
  SequenceQueue queue(options_of(2), /*instances=*/2);
  const auto now = Clock::now();
  for (const uint64_t id : {1U, 2U, 3U}) add(queue, id, yes, no, now);
  add(queue, 1, no, no, now);
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 1}, {1, 3}})) << "rows with low numbers of all instances are used first";
  EXPECT_EQ(run(queue, 1, now), (Rows{{0, 2}}));
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 1}}));
  add(queue, 3, no, no, now);
  EXPECT_EQ(run(queue, 0, now), (Rows{{1, 3}}));
}

TEST(SequenceQueue, RunsOneRequestOfASequenceAtATime) {
  SequenceQueue queue(options_of(2), 1);
  const auto now = Clock::now();
  add(queue, 1, yes, no, now);
  add(queue, 1, no, no, now);
  std::vector<SequenceRow> batch = queue.take_batch(0, now);
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_TRUE(queue.take_batch(0, now).empty());
  queue.finish(0, batch[0].slot, false, {}, now);
  EXPECT_EQ(queue.take_batch(0, now).size(), 1u);
}

TEST(SequenceQueue, WaitsForAFreeSlot) {
  SequenceQueue queue(options_of(1), 1);
  const auto now = Clock::now();
  add(queue, 1, yes, no, now);
  add(queue, 2, yes, no, now);
  add(queue, 2, no, yes, now);
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 1}}));
  EXPECT_TRUE(run(queue, 0, now).empty());
  add(queue, 1, no, yes, now);
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 1}}));
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 2}}));
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 2}}));
  EXPECT_EQ(queue.active_sequences(), 0u);
}

TEST(SequenceQueue, EndsIdleSequences) {
  SequenceQueue queue(options_of(1), 1);
  const auto now = Clock::now();
  add(queue, 1, yes, no, now);
  add(queue, 2, yes, no, now);
  run(queue, 0, now);
  EXPECT_EQ(queue.next_expiry(), now + microseconds(1000));
  EXPECT_FALSE(queue.expire(now + microseconds(999)));
  EXPECT_TRUE(queue.expire(now + microseconds(1000)));
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 2}}));
  EXPECT_THAT(push_problem(queue, sequence_request({1, no, no})), HasSubstr("no open sequence with the sequence_id 1"));
  EXPECT_TRUE(queue.expire(now, /*all=*/true));
  EXPECT_EQ(queue.next_expiry(), Clock::time_point::max());
}

TEST(SequenceQueue, StartsAgainWithInitialStates) {
  SequenceQueue queue(options_of(2, {{.input = "in", .output = "out", .dims = {3}, .initial_dims = {3}}}), 1);
  const auto now = Clock::now();
  const auto next = [&] { return queue.take_batch(0, now).at(0); };
  add(queue, 1, yes, no, now);
  SequenceRow row = next();
  EXPECT_EQ(row.states.at(0).sizes(), at::IntArrayRef({1, 3}));
  queue.finish(0, row.slot, false, {at::ones({1, 3})}, now);
  add(queue, 1, no, no, now);
  row = next();
  EXPECT_EQ(row.states.at(0).sum().item<float>(), 3);
  queue.finish(0, row.slot, false, row.states, now);
  add(queue, 1, yes, no, now);
  EXPECT_EQ(next().states.at(0).sum().item<float>(), 0);
}

TEST(SequenceQueue, CombinesOnlyEqualSizes) {
  SequenceQueue queue(options_of(4), 1);
  const auto now = Clock::now();
  for (const int64_t width : {1, 2, 1}) {
    PendingRequest request = sequence_request({static_cast<uint64_t>(10 + queue.size()), yes, no}, width);
    ASSERT_TRUE(queue.push(request, now));
  }
  EXPECT_EQ(run(queue, 0, now), (Rows{{0, 10}, {2, 12}}));
  EXPECT_EQ(run(queue, 0, now), (Rows{{1, 11}}));
}

TEST(SequenceQueue, RejectsBadRequests) {
  SequenceQueue queue(options_of(2), 1);
  const auto now = Clock::now();
  EXPECT_THAT(push_problem(queue, sequence_request({})), HasSubstr("needs the parameter sequence_id"));
  EXPECT_THAT(push_problem(queue, sequence_request({5, no, no})), HasSubstr("needs sequence_start"));
  PendingRequest two = sequence_request({5, yes, no});
  two.rows = 2;
  EXPECT_THAT(push_problem(queue, std::move(two)), HasSubstr("must be 1, got 2"));
  add(queue, 5, yes, yes, now);
  EXPECT_THAT(push_problem(queue, sequence_request({5, no, no})), HasSubstr("needs sequence_start"));
  for (int i = 0; i < 7; ++i) add(queue, 6, i == 0, no, now);
  PendingRequest more = sequence_request({6, no, no});
  EXPECT_FALSE(queue.push(more, now));
}

TEST(SequenceQueue, RemovesCancelledRequests) {
  SequenceQueue queue(options_of(1), 1);
  const auto now = Clock::now();
  const auto cancelled = std::make_shared<std::atomic<bool>>(true);
  const auto add_cancelled = [&](SequenceFlags flags) {
    PendingRequest request = sequence_request(flags);
    request.cancelled = cancelled;
    ASSERT_TRUE(queue.push(request, now));
  };
  add_cancelled({1, yes, no});
  add(queue, 1, no, no, now);
  EXPECT_EQ(queue.take_cancelled().size(), 2u) << "without its start, a sequence cannot run";
  EXPECT_THAT(push_problem(queue, sequence_request({1, no, no})), HasSubstr("needs sequence_start"));
  add(queue, 1, yes, no, now);
  add_cancelled({1, no, no});
  add(queue, 1, no, no, now);
  EXPECT_EQ(queue.take_cancelled().size(), 1u);
  EXPECT_EQ(queue.size(), 2u);
}

/// The model "accumulate" of test_models.h with its controls and its state.
class SequenceServer {
 public:
  explicit SequenceServer(int64_t max_batch_size, int instances = 1) {
    folder_.write("m/config.pbtxt", "max_batch_size: " + std::to_string(max_batch_size) +
                                        " instance_group { count: " + std::to_string(instances) + R"( }
      sequence_batching {
        max_sequence_idle_microseconds: 60000000
        direct { }
        control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
        control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
        control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
        control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
        state { input_name: "sum_in" output_name: "sum_out" data_type: TYPE_FP32 dims: 1
                initial_state { name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true } } })");
    folder_.write("m/1/model.test", "accumulate");
    ServerOptions options{.repository = folder_.path()};
    options.http.port = 0;
    server_ = std::make_unique<Server>(options, test_loader());
    server_->wait_until_loaded();
  }

  RawResponse ask(const std::string& request) const {
    RawClient client(server_->port());
    client.send(request);
    return client.receive();
  }
  RawResponse infer(uint64_t id, double x, bool start = false, bool end = false) const {
    const json input = {{"name", "x"}, {"datatype", "FP32"}, {"shape", {1, 1}}, {"data", json::array({x})}};
    const json body = {{"parameters", {{"sequence_id", id}, {"sequence_start", start}, {"sequence_end", end}}},
                       {"inputs", json::array({input})}};
    return ask(post("/v2/models/m/infer", body.dump()));
  }
  std::vector<double> values(uint64_t id, double x, bool start = false, bool end = false) const {
    const RawResponse response = infer(id, x, start, end);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body)["outputs"][0]["data"];
  }

 private:
  TestFolder folder_;
  std::unique_ptr<Server> server_{};
};

TEST(Sequences, KeepStatesInTheServer) {
  const SequenceServer server(4);
  EXPECT_THAT(server.values(7, 1, /*start=*/true), ElementsAre(1, 1, 1, 0, 7));
  EXPECT_THAT(server.values(7, 2), ElementsAre(3, 0, 1, 0, 7));
  EXPECT_THAT(server.values(8, 10, /*start=*/true), ElementsAre(10, 1, 1, 0, 8));
  EXPECT_THAT(server.values(7, 3, false, /*end=*/true), ElementsAre(6, 0, 1, 1, 7));
  EXPECT_THAT(server.values(8, 1), ElementsAre(11, 0, 1, 0, 8));
  EXPECT_EQ(server.infer(7, 1).status, 400);
  EXPECT_THAT(server.values(7, 1, /*start=*/true), ElementsAre(1, 1, 1, 0, 7));
}

TEST(Sequences, AreNotPartOfTheSignature) {
  const SequenceServer server(4);
  const json model = json::parse(server.ask(get("/v2/models/m")).body);
  EXPECT_EQ(model["inputs"].size(), 1u);
  EXPECT_EQ(model["outputs"].size(), 1u);
  const json config = json::parse(server.ask(get("/v2/models/m/config")).body)["sequence_batching"];
  EXPECT_EQ(config["control_input"].size(), 4u);
  EXPECT_EQ(config["state"][0]["input_name"], "sum_in");
}

TEST(Sequences, RunConcurrently) {
  const SequenceServer server(/*max_batch_size=*/2, /*instances=*/2);
  constexpr int sequences = 6, steps = 20;  // more sequences than slots
  std::vector<std::future<double>> sums;
  for (int id = 1; id <= sequences; ++id)
    sums.push_back(std::async(std::launch::async, [&server, id] {
      double last = 0;
      for (int i = 0; i < steps; ++i)
        last = server.values(static_cast<uint64_t>(id), id, /*start=*/i == 0, /*end=*/i == steps - 1)[0];
      return last;
    }));
  for (int id = 1; id <= sequences; ++id) EXPECT_EQ(sums[static_cast<size_t>(id - 1)].get(), id * steps);
}

TEST(Sequences, KeepTheirStateIfARequestFails) {
  const SequenceServer server(2);
  EXPECT_THAT(server.values(1, 5, /*start=*/true)[0], 5);
  EXPECT_THAT(server.values(2, 6, /*start=*/true)[0], 6);
  EXPECT_EQ(server.infer(1, -1).status, 500);
  EXPECT_THAT(server.values(1, 1)[0], 6);
  EXPECT_THAT(server.values(2, 1)[0], 7);
}

TEST(Sequences, NeedSequenceBatching) {
  TestFolder folder;
  folder.write("m/1/model.test", "identity");
  ServerOptions options{.repository = folder.path()};
  options.http.port = 0;
  Server server(options, test_loader());
  server.wait_until_loaded();
  RawClient client(server.port());
  client.send(post("/v2/models/m/infer", R"({"parameters":{"sequence_id":3},"inputs":[{"name":"x","datatype":"FP32",)"
                                         R"("shape":[1,4],"data":[1,2,3,4]}]})"));
  const RawResponse response = client.receive();
  EXPECT_EQ(response.status, 501);
  EXPECT_THAT(response.body, HasSubstr("does not support sequences"));
}

}  // namespace bellows::serve
