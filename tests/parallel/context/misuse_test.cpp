#include <gmock/gmock.h>

#include <limits>

#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/context/context_support.h"
#include "tests/support/errors.h"

// Errors of context parallelism: invalid arguments, ranks that differ, and ranks that fail.
namespace bellows::parallel::testing::context {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor heads_of(int64_t count, int64_t tokens, uint64_t seed = 1) {
  return drawn({2, count, tokens, 4}, seed);
}

std::vector<std::string> messages_of_both(const std::function<void(const comm::Group&)>& action) {
  return messages_of_ranks(2, action);
}

/// The messages of two ranks that pass the same query, key and value.
std::vector<std::string> messages_of_call(int64_t count, int64_t tokens, const ContextAttentionOptions& options) {
  return messages_of_both([&](const comm::Group& group) {
    const at::Tensor x = heads_of(count, tokens);
    context_attention(x, x, x, group, options);
  });
}

void expect_on_both(const std::vector<std::string>& messages, const std::string& text) {
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr(text));
}

TEST(ContextMisuse, Arguments) {
  expect_on_both(messages_of_call(4, 5, {}), "two chunks of equal length on each rank, got 5 queries");
  expect_on_both(messages_of_call(3, 4, {.method = ContextMethod::all_to_all}), "2 ranks do not divide 3 heads");
  expect_on_both(messages_of_call(4, 4, {.dropout = 1.5}), "expected dropout in [0, 1], got 1.5");
  expect_on_both(messages_of_call(4, 0, {}), "at least one token");
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{2, 1, 1, 5}, std::vector<int64_t>{2, 1, 4, 8}, std::vector<int64_t>{3, 1, 1, 8}}) {
    expect_on_both(messages_of_call(4, 4, {.mask = at::ones(sizes, at::kBool)}),
                   "expected a mask [N or 1, heads or 1, 1");
  }
  expect_on_both(messages_of_call(4, 4, {.mask = at::ones({8}, at::kLong)}), "mask of dtype Bool");
  expect_on_both(messages_of_call(4, 4, {.mask = at::zeros({8}, at::kDouble).requires_grad_()}), "require a gradient");
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const at::Tensor x = heads_of(4, 4), y = heads_of(4, 2);
                   context_attention(x, y, y, group, {.causal = true});
                 }),
                 "causal attention needs as many keys as queries");
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const at::Tensor x = heads_of(4, 4), y = heads_of(2, 4);
                   context_attention(x, y, y, group, {});
                 }),
                 "or the option `grouped`");
}

TEST(ContextMisuse, RanksThatDifferAreNamed) {
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const at::Tensor x = heads_of(4, group.rank() == 0 ? 4 : 8);
                   context_attention(x, x, x, group);
                 }),
                 "the ranks pass different arguments (group world). Rank 1: query Double [2, 4, 8, 4]");
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const at::Tensor x = heads_of(4, 4);
                   context_attention(x, x, x, group, {.causal = group.rank() == 1});
                 }),
                 "the ranks pass different arguments");
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const at::Tensor x = heads_of(4, group.rank() == 0 ? 4 : 3);
                   context_attention(x, x, x, group);
                 }),
                 "context_attention on rank 1 of group world: zig-zag order needs two chunks");
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const at::Tensor x = heads_of(4, 4);
                   const auto seed = static_cast<uint64_t>(group.rank());
                   context_attention(x, x, x, group,
                                     {.dropout = 0.1, .generator = at::detail::createCPUGenerator(seed)});
                 }),
                 "random generator with state");
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const ContextParallel context(group, {.zigzag = group.rank() == 0});
                 }),
                 "different options or versions for context parallelism");
}

TEST(ContextMisuse, GeneratorsThatDiffer) {
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const auto seed = static_cast<uint64_t>(group.rank());
                   const ContextParallel context(group, {.generator = at::detail::createCPUGenerator(seed)});
                   const auto scope = context.scope();
                   at::dropout(drawn({2, 4, 3}, 1), 0.5, true);
                 }),
                 "the ranks' random generators have different states");
}

TEST(ContextMisuse, NumbersThatAreNotFinite) {
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   at::Tensor x = heads_of(4, 4);
                   if (group.rank() == 1) x[0][1][2][3] = std::numeric_limits<double>::quiet_NaN();
                   context_attention(heads_of(4, 4), x, x, group, {.check_finite = true});
                 }),
                 "on rank 1 of group world: check_finite: expected finite numbers, got NaN or infinity in the key");
}

/// Runs a forward pass of a small BERT on two ranks.
std::vector<std::string> messages_of_model(const Training& how, int64_t tokens, const ContextBlocks& blocks,
                                           bool backward = false) {
  return messages_of_both([&](const comm::Group& group) {
    const Model model = tensor::make_on_rank(tensor::bert_task(), how);
    model.train();
    const ContextParallel context(group, {.generator = at::detail::createCPUGenerator(mask_seed)});
    models::run_blocks_by(model, context.blocks(2, blocks));
    const auto scope = context.scope();
    const at::Tensor y = model.forward(drawn_ids(37, {2, tokens}, 1));
    if (!blocks.gather) at::dropout(y, 0.1, true);
    if (backward) y.sum().backward();
  });
}

TEST(ContextMisuse, Models) {
  expect_on_both(messages_of_model({}, 6, {}), "2 ranks in zig-zag order need a multiple of 4. Pad the batch.");
  expect_on_both(messages_of_model({.dropout = 0.1, .fused = true}, 8, {}), "Create the model with fused: false");
  expect_on_both(messages_of_model({}, 8, {.gather = false}), "Set ContextBlocks::gather");
  const ContextBlocks checkpointed{
      .run = [](const ContextBlock& block, const at::Tensor& x) { return recompute::checkpoint(block, x); }};
  expect_on_both(messages_of_model({.dropout = 0.1}, 8, checkpointed, true),
                 "repeated a dropout that draws its mask with ContextOptions::generator");
}

TEST(ContextMisuse, Blocks) {
  run_ranks(2, [](const comm::Group& group) {
    const Model model = tensor::make_on_rank(tensor::gpt_task(), {});
    {
      const ContextParallel context(group);
      EXPECT_THAT(message_of([&] { context.blocks(0); }), HasSubstr("expected stacks of at least one block, got [0]"));
      models::run_blocks_by(model, context.blocks(2));
    }
    EXPECT_THAT(message_of([&] {
                  model.forward(drawn_ids(37, {2, 8}, 1));
                }),
                HasSubstr("the ContextParallel object no longer exists"));
  });
}

TEST(ContextMisuse, DropoutOfAnotherTensor) {
  expect_on_both(messages_of_both([](const comm::Group& group) {
                   const ContextParallel context(group, {.generator = at::detail::createCPUGenerator(1)});
                   const ContextBlock block = [](const at::Tensor& x) {
                     return at::dropout(x.transpose(1, 2), 0.1, true);
                   };
                   context.blocks(1)(block, drawn({2, 8, 3}, 1));
                 }),
                 "dropout expected this rank's tokens in dim 1 (4 tokens), got a tensor with sizes [2, 3, 4]");
}

TEST(ContextMisuse, SecondDerivatives) {
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::all_to_all}) {
    expect_on_both(messages_of_both([&](const comm::Group& group) {
                     const at::Tensor x = heads_of(4, 4).requires_grad_();
                     const at::Tensor y = context_attention(x, x, x, group, {.method = method}).square().sum();
                     y.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
                   }),
                   "second derivatives");
  }
}

/// Rank 1 fails before the named part of the second call. Returns the message of rank 0.
std::string message_after_failure(bool in_backward) {
  std::string message;
  EXPECT_THROW(run_ranks(
                   2,
                   [&](const comm::Group& group) {
                     const auto fail = [&](bool here) {
                       if (here && group.rank() == 1) throw std::runtime_error("rank 1 failed");
                     };
                     const auto call = [&] {
                       const at::Tensor x = heads_of(4, 4).requires_grad_();
                       return context_attention(x, x, x, group).sum();
                     };
                     const std::string text = message_of([&] {
                       call().backward();
                       fail(!in_backward);
                       const at::Tensor y = call();
                       fail(in_backward);
                       y.backward();
                     });
                     if (group.rank() == 0) message = text;
                   },
                   10),
               std::runtime_error);
  return message;
}

TEST(ContextMisuse, AnErrorOnOneRankEndsAllRanks) {
  EXPECT_THAT(message_after_failure(/*in_backward=*/false), AllOf(HasSubstr("all_gather"), HasSubstr("ank 1")));
  EXPECT_THAT(message_after_failure(/*in_backward=*/true), HasSubstr("ank 1"));
}

}  // namespace
}  // namespace bellows::parallel::testing::context
