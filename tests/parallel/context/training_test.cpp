#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <thread>

#include "bellows/amp/autocast.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/context/context_support.h"

// Training on the ranks of a context axis equals training on one process.
namespace bellows::parallel::testing::context {
namespace {

const Training with_masks = {.accumulate = 2, .dropout = 0.2, .max_norm = 0.5};

TEST(ContextTraining, RingEqualsOneProcess) {
  for (const Task& task : text_tasks())
    for (const int ranks : {2, 4}) expect_divided_like_one_process(task, with_masks, ranks, 1e-9);
}

TEST(ContextTraining, AllToAllEqualsOneProcess) {
  const Division division{.options = {.method = ContextMethod::all_to_all}};
  for (const Task& task : text_tasks()) expect_divided_like_one_process(task, with_masks, 2, 1e-9, division);
  expect_divided_like_one_process(tensor::gpt_task(), {.steps = 5}, 2, 1e-9,
                                  {.options = {.method = ContextMethod::all_to_all, .zigzag = false}});
}

TEST(ContextTraining, DividedLoss) {
  for (const Task& task : text_tasks())
    expect_divided_like_one_process(task, with_masks, 2, 1e-9, {.gather = false, .ddp = false});
  expect_divided_like_one_process(text_tasks()[1], with_masks, 4, 1e-9,
                                  {.options = {.zigzag = false}, .gather = false});
}

TEST(ContextTraining, EncoderAndDecoder) {
  expect_divided_like_one_process(series_task(), with_masks, 2, 1e-9, {.stacks = {2, 2}});
}

TEST(ContextTraining, ThreeRanks) {
  // Three ranks divide the six tokens of these tasks.
  for (const Task& task : {tensor::bert_task(), tensor::gpt_task()})
    expect_divided_like_one_process(task, {.steps = 5, .dropout = 0.2}, 3, 1e-9);
}

TEST(ContextTraining, WithActivationCheckpointing) {
  const Division division{
      .run = [](const ContextBlock& block, const at::Tensor& x) { return recompute::checkpoint(block, x); }};
  for (const Task& task : text_tasks()) expect_divided_like_one_process(task, {.steps = 5}, 2, 1e-9, division);
}

TEST(ContextTraining, InSinglePrecision) {
  for (const Task& task : text_tasks())
    expect_divided_like_one_process(task, {.dropout = 0.1, .dtype = at::kFloat}, 2, 1e-4);
}

TEST(ContextTraining, InHalfPrecision) {
  for (const Task& task : text_tasks())
    expect_divided_like_one_process(task, {.steps = 3, .dtype = at::kBFloat16}, 2, 0.05);
}

TEST(ContextTraining, LossesInHalfPrecision) {
  const Training how{.dtype = at::kBFloat16, .one_batch = true};
  for (const Task& task : text_tasks()) {
    SCOPED_TRACE(task.name);
    tensor::expect_same_descent(tensor::train_alone(task, how), [&](const comm::Group& group) {
      return train_divided(task, how, ContextParallel(group), {});
    });
  }
}

TEST(ContextTraining, UnderAutocast) {
  const Training how{.steps = 3, .dtype = at::kFloat};
  const Task task = text_tasks()[1];
  Outcome alone;
  {
    const amp::AutocastGuard autocast(c10::DeviceType::CPU, at::kBFloat16);
    alone = tensor::train_alone(task, how);
  }
  std::mutex reports;
  run_ranks(2, [&](const comm::Group& group) {
    const amp::AutocastGuard autocast(c10::DeviceType::CPU, at::kBFloat16);
    const Outcome got = train_divided(task, how, ContextParallel(group), {});
    const std::lock_guard<std::mutex> lock(reports);
    for (size_t i = 0; i < got.losses.size(); ++i) EXPECT_NEAR(got.losses[i], alone.losses[i], 0.03);
    tensor::expect_close(got.gradients, alone.gradients, 0.05);
  });
}

TEST(ContextTraining, OneRankIsBitIdentical) {
  const Task task = text_tasks()[1];
  const Outcome alone = tensor::train_alone(task, {.steps = 3});
  run_ranks(1, [&](const comm::Group& group) {
    const Outcome got = train_divided(task, {.steps = 3}, ContextParallel(group), {});
    EXPECT_EQ(got.losses, alone.losses);
    tensor::expect_close(got.weights, alone.weights, 0);
  });
}

/// Two replicas of a model, whose sequences are divided among two ranks each: the global batch has six samples.
TEST(ContextTraining, WithDataParallelReplicas) {
  const Task task = tensor::gpt_task();
  const auto target = [](int64_t step) { return drawn_ids(37, {6, 8}, 900 + static_cast<uint64_t>(step)); };
  const auto ids = [](int64_t step) { return drawn_ids(37, {6, 8}, static_cast<uint64_t>(step)); };
  const auto loss_of = [](const at::Tensor& logits, const at::Tensor& y) {
    return at::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
  };
  const auto train = [&](const Model& model, const std::function<at::Tensor(int64_t)>& loss) {
    const std::vector<at::Tensor> parameters = tensor::distinct_parameters(model);
    optim::SGD optimizer(parameters, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      loss(step).backward();
      optim::clip_grad_norm_(parameters, 0.5);
      optimizer.step();
    }
  };
  const Model alone = tensor::with_weights(task.make(0, false));
  train(alone, [&](int64_t step) { return loss_of(alone.forward(ids(step)), target(step)); });
  run_ranks(4, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"data", 2}, {"context", 2}});
    const Model model = tensor::make_on_rank(task, {});
    const ContextParallel context(mesh, "context");
    models::run_blocks_by(model, context.blocks(2));
    const DistributedDataParallel ddp(model, comm::combine(mesh.group("data"), mesh.group("context"), "gradients"));
    const int64_t first = 3 * mesh.coordinate("data");
    train(model, [&](int64_t step) {
      return loss_of(ddp.forward(ids(step).narrow(0, first, 3)), target(step).narrow(0, first, 3));
    });
    tensor::expect_close(model.named_parameters(), alone.named_parameters(), 1e-9);
  });
}

using BlocksOf = std::function<models::RunBlock(const ContextParallel&, const TensorParallel&)>;

/// Trains with an axis `context` and an axis `tensor` of two ranks each, and compares with one process.
void expect_as_alone(const Task& task, const Training& how, bool zigzag, const BlocksOf& blocks) {
  const Outcome alone = tensor::train_alone(task, how);
  std::mutex reports;
  run_ranks(4, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"context", 2}, {"tensor", 2}});
    const Model whole = tensor::make_on_rank(task, how);
    whole.train();
    const at::Generator masks = at::detail::createCPUGenerator(mask_seed);
    const TensorParallel layers = parallelize(whole, mesh, "tensor", tensor_plan(whole), {.generator = masks});
    const ContextParallel context(mesh, "context", {.zigzag = zigzag, .generator = masks, .tensor = layers});
    models::run_blocks_by(whole, blocks(context, layers));
    const DistributedDataParallel ddp(layers.model(), context.group());
    const auto scope = layers.scope();
    Outcome got;
    tensor::run_steps(
        task, how, layers.model(), [&](const at::Tensor& x) { return ddp.forward(x); }, got,
        [&] { return tensor::gathered_gradients(layers); });
    got.weights = comm::gather(layers.shards(), layers.group());
    const std::lock_guard<std::mutex> lock(reports);
    tensor::expect_close(got, alone, 1e-9);
  });
}

/// Each rank has the heads of its slices of the layers and the tokens of its part of the sequence, also of their masks.
TEST(ContextTraining, WithTensorParallelism) {
  const Training how{.steps = 10, .dropout = 0.2, .max_norm = 0.5};
  for (const Task& task : {text_tasks()[0], text_tasks()[1], series_task()}) {
    SCOPED_TRACE(task.name);
    const std::vector<int64_t> stacks =
        task.name == "encoder_decoder" ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{2};
    expect_as_alone(task, how, ContextOptions().zigzag,
                    [&](const ContextParallel& context, const TensorParallel&) { return context.blocks(stacks); });
  }
}

/// The ranks of the tensor axis divide this rank's part of each sequence again, also its masks.
TEST(ContextTraining, WithSequenceParallelism) {
  const Training how{.steps = 10, .dropout = 0.2, .max_norm = 0.5};
  for (const Task& task : {text_tasks()[0], text_tasks()[1]}) {
    SCOPED_TRACE(task.name);
    for (const bool zigzag : {true, false}) {
      expect_as_alone(task, how, zigzag, [](const ContextParallel& context, const TensorParallel& layers) {
        return context.blocks(2, {.run = layers.sequence_blocks(2)});
      });
    }
  }
}

TEST(ContextTraining, ErrorsOfOtherAxes) {
  run_ranks(4, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"context", 2}, {"tensor", 2}});
    const torch::nn::Linear first(8, 12), second(12, 4);
    const Model model = Model::of(torch::nn::Sequential(first, second), "net");
    const at::Generator masks = at::detail::createCPUGenerator(mask_seed);
    const TensorParallel layers = parallelize(model, mesh, "tensor", {{"0", column}, {"1", row}}, {.generator = masks});
    const ContextParallel context(mesh, "context", {.generator = masks, .tensor = layers});
    const at::Tensor x = at::ones({2, 4, 8});
    try {
      layers.run({x}, [&] {
        const auto scope = context.scope();
        at::dropout(at::linear(x, first->weight, first->bias).unflatten(2, {2, 3}), 0.5, true);
      });
      ADD_FAILURE() << "no error on rank " << world.rank();
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(),
                  ::testing::HasSubstr("expected a tensor [N, T, features], got one with sizes [2, 4, 2, 3]"));
    }
    try {
      context.stage_parts({model, {}});
      ADD_FAILURE() << "no error on rank " << world.rank();
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("expected embeddings, blocks and a head, got 0 parts"));
    }
  });
}

/// Backward runs blocks again on threads of autograd, also while a scope exists on the thread of forward.
TEST(ContextTraining, BlocksOnAnotherThread) {
  const at::Tensor x = drawn({2, 8, 12}, 1);
  const ContextBlock block = [](const at::Tensor& part) {
    const at::Tensor heads = part.unflatten(2, {3, 4}).transpose(1, 2);
    return at::scaled_dot_product_attention(heads, heads, heads, {}, 0, true).transpose(1, 2).flatten(2);
  };
  run_ranks(2, [&](const comm::Group& group) {
    const ContextParallel context(group);
    const RunContextBlock run = context.blocks(1);
    const auto scope = context.scope();
    at::Tensor y;
    std::thread([&] { y = run(block, x); }).join();
    EXPECT_TRUE(at::allclose(y, block(x), 1e-12, 1e-12));
  });
}

/// A custom model that adds the embeddings of its tokens' positions: ids [N, T] → [N, T, 3].
struct OwnAttention final : torch::nn::Module {
  OwnAttention() {
    words = register_module("words", torch::nn::Embedding(11, 8));
    places = register_module("places", torch::nn::Embedding(12, 8));
    project = register_module("project", torch::nn::Linear(8, 24));
    last = register_module("last", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = at::dropout(words->forward(ids) + places->forward(positions), 0.3, true);
    const auto parts = project->forward(x).unflatten(2, {6, 4}).transpose(1, 2).chunk(3, 1);
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.2, true);
    return last->forward(at::dropout(y.transpose(1, 2).flatten(2), 0.3, true) + x);
  }
  at::Tensor positions = at::arange(12);
  torch::nn::Embedding words{nullptr}, places{nullptr};
  torch::nn::Linear project{nullptr}, last{nullptr};
};

std::shared_ptr<OwnAttention> own_attention() {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  auto net = std::make_shared<OwnAttention>();
  tensor::with_weights(Model::of(net, "own"));
  return net;
}

TEST(ContextTraining, ModelsOfYourOwn) {
  const at::Tensor ids = drawn_ids(11, {2, 12}, 1), target = drawn_ids(3, {2, 12}, 2);
  const auto alone = own_attention();
  at::manual_seed(mask_seed);
  const at::Tensor expected = at::cross_entropy_loss(alone->forward(ids).flatten(0, 1), target.flatten());
  expected.backward();
  run_ranks(3, [&](const comm::Group& group) {
    const auto net = own_attention();
    const ContextParallel context(group, {.generator = at::detail::createCPUGenerator(mask_seed)});
    const auto scope = context.scope();
    net->positions = context.positions(12);
    const at::Tensor y = net->forward(context.slice(ids, 1));
    const at::Tensor own = context.slice(target, 1).flatten();
    const at::Tensor sum = at::cross_entropy_loss(y.flatten(0, 1), own, {}, at::Reduction::Sum);
    const at::Tensor loss = context.loss(sum, at::tensor(own.numel()));
    loss.backward();
    context.average_gradients(net->parameters());
    EXPECT_NEAR(comm::all_reduce(loss.detach().clone(), group, comm::Reduce::mean).item<double>(),
                expected.item<double>(), 1e-12);
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(at::allclose(item.value().grad(), alone->named_parameters()[item.key()].grad(), 1e-9, 1e-12));
  });
}

/// A rank that does not use a parameter counts as zeros. Otherwise, the ranks would wait for different tensors.
TEST(ContextTraining, AveragesGradientsThatSomeRanksLack) {
  run_ranks(2, [](const comm::Group& group) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(at::zeros({3}, at::kDouble).requires_grad_());
    const auto own = static_cast<size_t>(group.rank());
    parameters[own].mutable_grad() = at::full({3}, 4.0 + group.rank(), at::kDouble);
    parameters[2].mutable_grad() = at::full({3}, 1.0 + group.rank(), at::kDouble);
    ContextParallel(group).average_gradients(parameters);
    for (const auto& [index, mean] : {std::pair{0, 2.0}, std::pair{1, 2.5}, std::pair{2, 1.5}})
      EXPECT_TRUE(parameters[static_cast<size_t>(index)].grad().equal(at::full({3}, mean, at::kDouble))) << index;
    EXPECT_FALSE(parameters[3].grad().defined());
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::context
