#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/models/bert.h"
#include "bellows/serve/batch/padding.h"
#include "bellows/serve/batch_execution.h"
#include "tests/serve/requests.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using testing::ElementsAre;

const std::vector<TensorSpec> ids_and_mask{{.name = "ids", .dtype = c10::kLong, .dims = {-1}},
                                           {.name = "mask", .dtype = c10::kLong, .dims = {-1}}};
const std::vector<TensorSpec> per_token{{.name = "y", .dims = {-1, 3}}, {.name = "z", .dims = {2}}};

std::shared_ptr<const Padding> padding_of(PadOptions options, std::vector<TensorSpec> inputs = ids_and_mask) {
  return std::make_shared<Padding>(options, inputs, per_token);
}

/// Runs all requests in one batch, and returns their outputs.
std::vector<std::vector<at::Tensor>> run(const RunModel& model, std::vector<PendingRequest> requests,
                                         const Padding* padding) {
  std::vector<std::vector<at::Tensor>> outputs(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].done = [&outputs, i](InferenceResult result) {
      EXPECT_FALSE(result.error) << result.error->what();
      outputs[i] = std::move(result.outputs);
    };
  }
  ModelStatistics statistics;
  execute_batch(model, requests, /*batched=*/true, statistics, padding);
  return outputs;
}

}  // namespace

TEST(Padding, ChoosesBuckets) {
  const auto buckets = padding_of({.buckets = {16, 32}});
  EXPECT_EQ(buckets->padded_length(1), 16);
  EXPECT_EQ(buckets->padded_length(16), 16);
  EXPECT_EQ(buckets->padded_length(17), 32);
  EXPECT_EQ(buckets->padded_length(40), 40);
  EXPECT_EQ(padding_of({})->padded_length(7), 7);
}

TEST(Padding, JoinsRequestsOfOneBucket) {
  const auto inputs = [](int64_t length, int64_t mask_length) {
    return std::vector<at::Tensor>{at::ones({1, length}, at::kLong), at::ones({2, mask_length}, at::kLong)};
  };
  const auto open = padding_of({}), buckets = padding_of({.buckets = {16, 32}});
  EXPECT_TRUE(open->can_join(inputs(3, 3), inputs(50, 50)));
  EXPECT_FALSE(open->can_join(inputs(3, 3), inputs(3, 4))) << "the inputs of a request have different lengths";
  EXPECT_TRUE(buckets->can_join(inputs(3, 3), inputs(16, 16)));
  EXPECT_FALSE(buckets->can_join(inputs(3, 3), inputs(17, 17)));
  EXPECT_TRUE(buckets->can_join(inputs(33, 33), inputs(50, 50)));
  const auto other_axis = [&](int64_t width) {
    return std::vector<at::Tensor>{at::ones({1, 3, width}), at::ones({1, 3})};
  };
  EXPECT_FALSE(open->can_join(other_axis(2), other_axis(4)));
}

TEST(Padding, RejectsWrongOptions) {
  EXPECT_THROW(padding_of({.axis = 2}), c10::ValueError);
  EXPECT_THROW(padding_of({.values = {{"idz", 1}}}), c10::ValueError);
  EXPECT_THROW(padding_of({}, {{.name = "x", .dims = {4}}}), c10::ValueError);
}

TEST(Padding, QueueCombinesLengths) {
  const auto queue_of = [](std::shared_ptr<const Padding> padding) {
    return RequestQueue({.max_batch_size = 8, .dynamic_batching = DynamicBatching{}, .padding = std::move(padding)});
  };
  const auto fill = [](RequestQueue& queue, Clock::time_point now) {
    for (const int64_t length : {3, 20, 5}) {
      PendingRequest request = request_of({at::ones({1, length}, at::kLong), at::ones({1, length}, at::kLong)});
      ASSERT_TRUE(queue.push(request, now));
    }
  };
  const auto now = Clock::now();
  RequestQueue without = queue_of(nullptr), all = queue_of(padding_of({})),
               buckets = queue_of(padding_of({.buckets = {8, 32}}));
  fill(without, now);
  EXPECT_EQ(without.take_batch(now, false).size(), 1u) << "padding is off by default";
  fill(all, now);
  EXPECT_EQ(all.take_batch(now, false).size(), 3u);
  fill(buckets, now);
  EXPECT_EQ(buckets.take_batch(now, false).size(), 2u);
  EXPECT_EQ(buckets.take_batch(now, false).size(), 1u);
}

TEST(Padding, PadsInputsAndCutsOutputs) {
  const auto padding = padding_of({.buckets = {4}, .values = {{"ids", 9}}});
  std::vector<std::vector<int64_t>> seen;
  const RunModel model = [&](std::span<const at::Tensor> inputs) {
    for (const at::Tensor& input : inputs) {
      const auto* data = static_cast<const int64_t*>(input.const_data_ptr());
      seen.emplace_back(data, data + input.numel());
    }
    return std::vector<at::Tensor>{at::stack({inputs[0], inputs[0], inputs[0]}, 2).to(at::kFloat),
                                   at::zeros({inputs[0].size(0), 2})};
  };
  const auto ones = [](int64_t rows, int64_t length) {
    return request_of({at::ones({rows, length}, at::kLong), at::ones({rows, length}, at::kLong)});
  };
  std::vector<PendingRequest> requests;
  requests.push_back(ones(1, 2));
  requests.push_back(ones(2, 3));
  const auto outputs = run(model, std::move(requests), padding.get());
  EXPECT_THAT(seen[0], ElementsAre(1, 1, 9, 9, 1, 1, 1, 9, 1, 1, 1, 9));
  EXPECT_THAT(seen[1], ElementsAre(1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0));
  EXPECT_EQ(outputs[0][0].sizes(), at::IntArrayRef({1, 2, 3}));
  EXPECT_EQ(outputs[1][0].sizes(), at::IntArrayRef({2, 3, 3}));
  EXPECT_TRUE(outputs[1][0].eq(1).all().item<bool>());
  EXPECT_TRUE(outputs[1][0].is_contiguous());
  EXPECT_EQ(outputs[1][1].sizes(), at::IntArrayRef({2, 2}));
}

/// A request alone and padded in a batch: a transformer with a mask gives the same logits up to fp32 rounding, because
/// kernels sum in another order for other sizes.
TEST(Padding, KeepsTheResultsOfATransformer) {
  at::manual_seed(1);
  models::BertOptions options{.head = models::TextHead::masked_lm,
                              .vocab_size = 50,
                              .hidden_size = 32,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 4,
                              .intermediate_size = 64,
                              .max_position_embeddings = 64};
  Model bert = models::bert(options);
  bert.eval();
  const RunModel model = [&](std::span<const at::Tensor> inputs) {
    const c10::NoGradGuard no_grad;
    return std::vector<at::Tensor>{bert.forward(inputs[0])};
  };
  const std::vector<TensorSpec> ids{{.name = "input_ids", .dtype = c10::kLong, .dims = {-1}}},
      logits{{.name = "logits", .dims = {-1, 50}}};
  for (const std::vector<int64_t>& buckets : {std::vector<int64_t>{}, std::vector<int64_t>{16, 32}}) {
    const Padding padding({.buckets = buckets}, ids, logits);
    std::vector<PendingRequest> alone, together;
    for (const int64_t length : {3, 31, 7, 17}) {
      const at::Tensor tokens = at::randint(1, 50, {2, length}, at::kLong);
      alone.push_back(request_of({tokens}));
      together.push_back(request_of({tokens}));
    }
    std::vector<at::Tensor> expected;
    for (PendingRequest& request : alone) {
      std::vector<PendingRequest> one;
      one.push_back(std::move(request));
      expected.push_back(run(model, std::move(one), nullptr)[0][0]);
    }
    const auto outputs = run(model, std::move(together), &padding);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(outputs[i][0].sizes(), expected[i].sizes());
      EXPECT_TRUE(at::allclose(outputs[i][0], expected[i], /*rtol=*/1e-5, /*atol=*/1e-5))
          << (outputs[i][0] - expected[i]).abs().max().item<float>();
    }
  }
}

}  // namespace bellows::serve
