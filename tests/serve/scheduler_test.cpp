#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "bellows/serve/scheduler.h"
#include "tests/serve/requests.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using std::chrono::microseconds;

QueueOptions batching(int64_t max_batch_size, uint64_t delay_us = 0, std::vector<int64_t> preferred = {}) {
  DynamicBatching dynamic{.preferred_sizes = std::move(preferred), .max_queue_delay_us = delay_us};
  return {.max_batch_size = max_batch_size, .dynamic_batching = dynamic};
}

PendingRequest rows(int64_t count) {
  return request_of({at::zeros({count, 4})});
}

std::vector<int64_t> rows_of(const std::vector<PendingRequest>& batch) {
  std::vector<int64_t> list;
  for (const PendingRequest& request : batch) list.push_back(request.rows);
  return list;
}

void add(RequestQueue& queue, PendingRequest request, Clock::time_point now) {
  ASSERT_TRUE(queue.push(request, now));
}

/// Submits a request and returns its future answer.
std::future<InferenceResult> submit(Scheduler& scheduler, at::Tensor input, uint64_t timeout_us = 0,
                                    std::shared_ptr<const std::atomic<bool>> cancelled = {}) {
  auto promise = std::make_shared<std::promise<InferenceResult>>();
  PendingRequest request =
      request_of({std::move(input)}, [promise](InferenceResult result) { promise->set_value(std::move(result)); });
  request.timeout_us = timeout_us;
  request.cancelled = std::move(cancelled);
  EXPECT_EQ(scheduler.submit(request), Scheduler::Submitted::queued);
  return promise->get_future();
}

RunModel gated() {
  return [](std::span<const at::Tensor> inputs) {
    gate().wait();
    return std::vector<at::Tensor>{inputs[0]};
  };
}

}  // namespace

TEST(RequestQueue, RunsRequestsAloneWithoutDynamicBatching) {
  RequestQueue queue({.max_batch_size = 8});
  const auto now = Clock::now();
  add(queue, rows(1), now);
  add(queue, rows(2), now);
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), std::vector<int64_t>{1});
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), std::vector<int64_t>{2});
  EXPECT_TRUE(queue.take_batch(now, false).empty());
}

TEST(RequestQueue, FillsBatchesInOrder) {
  RequestQueue queue(batching(8));
  const auto now = Clock::now();
  for (const int64_t count : {3, 4, 2, 8, 1}) add(queue, rows(count), now);
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), std::vector<int64_t>{2});
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), std::vector<int64_t>{8});
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), std::vector<int64_t>{1});
}

TEST(RequestQueue, WaitsForMoreRequestsUntilTheDelay) {
  RequestQueue queue(batching(4, /*delay_us=*/1000));
  const auto now = Clock::now();
  add(queue, rows(1), now);
  EXPECT_TRUE(queue.take_batch(now + microseconds(999), false).empty());
  EXPECT_EQ(queue.wait_until(), now + microseconds(1000));
  EXPECT_EQ(rows_of(queue.take_batch(now + microseconds(1000), false)), std::vector<int64_t>{1});
  add(queue, rows(1), now);
  EXPECT_EQ(rows_of(queue.take_batch(now, /*flush=*/true)), std::vector<int64_t>{1});
  add(queue, rows(2), now);
  add(queue, rows(2), now);
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), (std::vector<int64_t>{2, 2}));
  add(queue, rows(3), now);
  add(queue, rows(2), now);  // does not fit, so waiting is useless
  EXPECT_EQ(rows_of(queue.take_batch(now, false)), std::vector<int64_t>{3});
}

TEST(RequestQueue, FormsPreferredSizes) {
  RequestQueue queue(batching(8, 1000, {2, 4}));
  const auto now = Clock::now();
  for (int i = 0; i < 5; ++i) add(queue, rows(1), now);
  EXPECT_EQ(queue.take_batch(now, false).size(), 4u);
  EXPECT_TRUE(queue.take_batch(now, false).empty());
  add(queue, rows(2), now);
  EXPECT_TRUE(queue.take_batch(now, false).empty()) << "3 rows are not preferred";
  EXPECT_EQ(rows_of(queue.take_batch(now + microseconds(1000), false)), (std::vector<int64_t>{1, 2}));
}

TEST(RequestQueue, CombinesOnlyEqualSizes) {
  RequestQueue queue(batching(8));
  const auto now = Clock::now();
  for (const int64_t width : {4, 5, 4}) add(queue, request_of({at::zeros({1, width})}), now);
  const auto first = queue.take_batch(now, false), second = queue.take_batch(now, false);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].inputs[0].size(1), 4);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].inputs[0].size(1), 5);
}

TEST(RequestQueue, PrefersHigherPriorities) {
  QueueOptions options = batching(1);
  options.dynamic_batching->priority_levels = 3;
  options.dynamic_batching->default_priority_level = 2;
  RequestQueue queue(options);
  const auto now = Clock::now();
  for (const uint64_t priority : {3, 0, 1, 2}) {
    PendingRequest request = rows(1);
    request.priority = priority;
    add(queue, std::move(request), now);
  }
  std::vector<uint64_t> order;
  for (int i = 0; i < 4; ++i) order.push_back(queue.take_batch(now, false).at(0).priority);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 2, 3}));
  PendingRequest wrong = rows(1);
  wrong.priority = 4;
  EXPECT_THROW(queue.push(wrong, now), RequestError);
}

TEST(RequestQueue, LimitsEachPriority) {
  QueueOptions options = batching(4);
  options.max_queue_size = 2;
  RequestQueue queue(options);
  const auto now = Clock::now();
  add(queue, rows(1), now);
  add(queue, rows(1), now);
  PendingRequest third = rows(3);
  EXPECT_FALSE(queue.push(third, now));
  EXPECT_EQ(third.inputs.size(), 1u) << "a request that is not accepted must not change";
  options.dynamic_batching->default_policy.max_queue_size = 1;
  RequestQueue smaller(options);
  add(smaller, rows(1), now);
  EXPECT_FALSE(smaller.push(third, now));
}

TEST(RequestQueue, DropsRequestsThatTimeOut) {
  QueueOptions options = batching(4, 1'000'000);
  options.dynamic_batching->default_policy = {.default_timeout_us = 100, .allow_timeout_override = true};
  RequestQueue queue(options);
  const auto now = Clock::now();
  add(queue, rows(1), now);
  PendingRequest shorter = rows(2);
  shorter.timeout_us = 50;
  add(queue, std::move(shorter), now);
  PendingRequest longer = rows(3);
  longer.timeout_us = 5000;  // a request may only shorten the timeout
  add(queue, std::move(longer), now);
  EXPECT_EQ(queue.next_deadline(), now + microseconds(50));
  EXPECT_EQ(rows_of(queue.take_dropped(now + microseconds(50))), std::vector<int64_t>{2});
  EXPECT_EQ(rows_of(queue.take_dropped(now + microseconds(100))), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(queue.size(), 0u);
}

TEST(RequestQueue, DelaysRequestsThatTimeOut) {
  QueueOptions options = batching(1);
  options.dynamic_batching->default_policy = {.delay_on_timeout = true, .default_timeout_us = 100};
  RequestQueue queue(options);
  const auto now = Clock::now();
  add(queue, request_of({at::zeros({1, 9})}), now);
  EXPECT_TRUE(queue.take_dropped(now + microseconds(100)).empty());
  add(queue, request_of({at::zeros({1, 2})}), now + microseconds(100));
  EXPECT_EQ(queue.take_batch(now + microseconds(100), false).at(0).inputs[0].size(1), 2);
  EXPECT_TRUE(queue.take_dropped(now + microseconds(100000)).empty());
  EXPECT_EQ(queue.take_batch(now, false).at(0).inputs[0].size(1), 9);
}

TEST(RequestQueue, DropsCancelledRequests) {
  RequestQueue queue(batching(4, 1000));
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  PendingRequest request = rows(2);
  request.cancelled = cancelled;
  const auto now = Clock::now();
  add(queue, std::move(request), now);
  EXPECT_TRUE(queue.take_dropped(now).empty());
  *cancelled = true;
  EXPECT_EQ(rows_of(queue.take_dropped(now)), std::vector<int64_t>{2});
}

// One thread for each client sends requests of different sizes. Each answer must have the bits of a single call.
TEST(Scheduler, BatchesHaveTheBitsOfSingleCalls) {
  const RunModel model = [](std::span<const at::Tensor> inputs) {
    return std::vector<at::Tensor>{at::sin(inputs[0]) * 3 + inputs[0], inputs[0].narrow(1, 0, 1).contiguous()};
  };
  const auto statistics = std::make_shared<ModelStatistics>();
  Scheduler scheduler({model, model}, batching(16, 2000), statistics);
  constexpr int clients = 4, requests = 60;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      for (int i = 0; i < requests; ++i) {
        const at::Tensor x = at::arange(4 * (1 + i % 5), at::kFloat).view({1 + i % 5, 4}) * (client + 1) + 0.01 * i;
        const InferenceResult answer = submit(scheduler, x).get();
        const std::vector<at::Tensor> expected = model({&x, 1});
        if (answer.error || !at::equal(answer.outputs.at(0), expected[0]) ||
            !at::equal(answer.outputs.at(1), expected[1]))
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  scheduler.drain();
  EXPECT_EQ(wrong, 0);
  const StatisticsValues values = statistics->values();
  EXPECT_EQ(values.success.count, static_cast<uint64_t>(clients * requests));
  EXPECT_LE(values.executions, values.success.count);
  EXPECT_EQ(values.inferences, static_cast<uint64_t>(clients * requests * 3));
}

TEST(Scheduler, CombinesRequestsThatWait) {
  const auto statistics = std::make_shared<ModelStatistics>();
  Scheduler scheduler({gated()}, batching(8), statistics);
  const ClosedGate closed;
  auto first = submit(scheduler, at::ones({1, 4}));
  gate().wait_for_arrivals(1);
  std::vector<std::future<InferenceResult>> others;
  for (int i = 0; i < 5; ++i) others.push_back(submit(scheduler, at::full({1, 4}, i)));
  EXPECT_EQ(statistics->values().pending, 5u);
  gate().open();
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(at::equal(others[static_cast<size_t>(i)].get().outputs.at(0), at::full({1, 4}, i)));
  first.get();
  scheduler.drain();
  EXPECT_EQ(statistics->values().executions, 2u);
  EXPECT_EQ(statistics->values().batches.at(5).compute_infer.count, 1u);
}

TEST(Scheduler, RejectsRequestsBeyondTheLimit) {
  QueueOptions options = batching(8);
  options.max_queue_size = 2;
  Scheduler scheduler({gated()}, options, std::make_shared<ModelStatistics>());
  const ClosedGate closed;
  auto running = submit(scheduler, at::ones({1, 4}));
  gate().wait_for_arrivals(1);
  auto one = submit(scheduler, at::ones({1, 4})), two = submit(scheduler, at::ones({1, 4}));
  PendingRequest third =
      request_of({at::ones({1, 4})}, [](InferenceResult) { FAIL() << "not accepted, but answered"; });
  EXPECT_EQ(scheduler.submit(third), Scheduler::Submitted::full);
  gate().open();
  for (auto* answer : {&running, &one, &two}) EXPECT_FALSE(answer->get().error);
}

TEST(Scheduler, AnswersTimeoutsWhileTheModelIsBusy) {
  QueueOptions options = batching(8);
  options.dynamic_batching->default_policy = {.default_timeout_us = 20'000};
  const auto statistics = std::make_shared<ModelStatistics>();
  Scheduler scheduler({gated()}, options, statistics);
  const ClosedGate closed;
  auto running = submit(scheduler, at::ones({1, 4}));
  gate().wait_for_arrivals(1);
  const InferenceResult late = submit(scheduler, at::ones({1, 4})).get();  // the gate is still closed
  ASSERT_TRUE(late.error);
  EXPECT_EQ(late.error->status(), status_unavailable);
  EXPECT_EQ(statistics->values().failures[static_cast<size_t>(FailureReason::rejected)], 1u);
  gate().open();
  EXPECT_FALSE(running.get().error);
}

TEST(Scheduler, CancelledRequestsDoNotRun) {
  const auto statistics = std::make_shared<ModelStatistics>();
  Scheduler scheduler({gated()}, batching(8), statistics);
  const ClosedGate closed;
  auto running = submit(scheduler, at::ones({1, 4}));
  gate().wait_for_arrivals(1);
  const auto cancelled = std::make_shared<std::atomic<bool>>(true);
  const InferenceResult answer = submit(scheduler, at::ones({1, 4}), 0, cancelled).get();
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->status(), status_cancelled);
  gate().open();
  running.get();
  scheduler.drain();
  EXPECT_EQ(statistics->values().executions, 1u);
}

TEST(Scheduler, ABadRequestDoesNotFailItsNeighbours) {
  const RunModel strict = [](std::span<const at::Tensor> inputs) {
    gate().wait();
    if (inputs[0].lt(0).any().item<bool>()) throw std::runtime_error("negative");
    return std::vector<at::Tensor>{inputs[0]};
  };
  const auto statistics = std::make_shared<ModelStatistics>();
  Scheduler scheduler({strict}, batching(8), statistics);
  const ClosedGate closed;
  auto first = submit(scheduler, at::ones({1, 4}));
  gate().wait_for_arrivals(1);
  auto good = submit(scheduler, at::full({2, 4}, 2)), bad = submit(scheduler, at::full({1, 4}, -1)),
       last = submit(scheduler, at::full({1, 4}, 3));
  gate().open();
  EXPECT_TRUE(at::equal(good.get().outputs.at(0), at::full({2, 4}, 2)));
  EXPECT_TRUE(at::equal(last.get().outputs.at(0), at::full({1, 4}, 3)));
  const InferenceResult failed = bad.get();
  ASSERT_TRUE(failed.error);
  EXPECT_EQ(failed.error->status(), status_internal);
  EXPECT_NE(std::string(failed.error->what()).find("negative"), std::string::npos);
  first.get();
  scheduler.drain();
  EXPECT_EQ(statistics->values().failures[static_cast<size_t>(FailureReason::backend)], 1u);
}

TEST(Scheduler, RejectsOutputsWithAnotherNumberOfRows) {
  const RunModel shrink = [](std::span<const at::Tensor>) { return std::vector<at::Tensor>{at::ones({7, 4})}; };
  Scheduler scheduler({shrink}, batching(8), std::make_shared<ModelStatistics>());
  const InferenceResult answer = submit(scheduler, at::ones({2, 4})).get();
  ASSERT_TRUE(answer.error);
  EXPECT_NE(std::string(answer.error->what()).find("2 rows"), std::string::npos) << answer.error->what();
}

TEST(Scheduler, DrainAnswersAllAcceptedRequests) {
  Scheduler scheduler({gated()}, batching(2, /*delay_us=*/3'600'000'000), std::make_shared<ModelStatistics>());
  const ClosedGate closed;
  std::vector<std::future<InferenceResult>> answers;
  answers.push_back(submit(scheduler, at::ones({2, 4})));
  gate().wait_for_arrivals(1);
  for (int i = 0; i < 5; ++i) answers.push_back(submit(scheduler, at::full({1, 4}, i)));
  std::thread drain([&] { scheduler.drain(); });
  while (true) {
    PendingRequest late = request_of({at::ones({1, 4})}, [](InferenceResult) {});
    if (scheduler.submit(late) == Scheduler::Submitted::draining) break;
    std::this_thread::yield();
  }
  gate().open();
  drain.join();
  for (auto& answer : answers) EXPECT_FALSE(answer.get().error);
  scheduler.drain();  // may be called again
}

TEST(Scheduler, UsesAllInstances) {
  Scheduler scheduler({gated(), gated(), gated()}, {.max_batch_size = 0}, std::make_shared<ModelStatistics>());
  const ClosedGate closed;
  std::vector<std::future<InferenceResult>> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(submit(scheduler, at::ones({1, 4})));
  gate().wait_for_arrivals(3);  // hangs if an instance does not run
  gate().open();
  for (auto& answer : answers) EXPECT_FALSE(answer.get().error);
}

}  // namespace bellows::serve
