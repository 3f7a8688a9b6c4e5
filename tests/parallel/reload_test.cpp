#include <gmock/gmock.h>

#include <random>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/optim/state/state.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/pipeline/pipeline_support.h"
#include "tests/parallel/saved_tensors.h"
#include "tests/support/temporary_folder.h"

// A checkpoint of any layout of ranks loads on any other one. The complete weights and optimizer state are bit-identical.
namespace bellows::parallel::testing::stages {
namespace {

using optim::AdamW;
using optim::AdamWOptions;

/// How ranks divide the model and the batch.
struct Layout {
  std::string name;
  int data = 1, pipeline = 1, tensor = 1;
  bool sharded = false;  ///< ZeRO-3 over the data axis
  int ranks() const { return data * pipeline * tensor; }
};

std::vector<Layout> all_layouts() {
  return {{.name = "one process"},
          {.name = "DDP 2", .data = 2},
          {.name = "ZeRO-3 2", .data = 2, .sharded = true},
          {.name = "tensor 2", .tensor = 2},
          {.name = "pipeline 2", .pipeline = 2},
          {.name = "data 2 × pipeline 2", .data = 2, .pipeline = 2},
          {.name = "data 2 × tensor 2", .data = 2, .tensor = 2},
          {.name = "pipeline 2 × tensor 2", .pipeline = 2, .tensor = 2}};
}

/// One rank's part of a model and of its optimizer.
class Holder {
 public:
  virtual ~Holder() = default;
  virtual checkpoint::Parts model_parts() const = 0;
  virtual checkpoint::Parts optimizer_parts() const = 0;
  virtual void load(const std::string& path, const comm::Group& world) = 0;
  virtual void save(const std::string& path, const comm::Group& world) const {
    checkpoint::save_sharded(path, {.model = model_parts(), .optimizer = optimizer_parts(), .step = 3}, world);
  }
  /// Params: data_rank – selects the rank's batches
  void train(int64_t steps, int data_rank) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer().zero_grad();
      backward(2 * step + data_rank);
      optimizer().step();
    }
  }

 protected:
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual void backward(int64_t number) = 0;
};

at::Tensor loss_of(const at::Tensor& logits, int64_t number) {
  return mean_token_loss(logits, {targets_of(number)});
}

Model training_model() {
  Model model = tensor::make_on_rank(tensor::gpt_task(), {});
  model.train();
  return model;
}

/// One process or data parallelism: the rank holds everything.
class WholeHolder final : public Holder {
 public:
  explicit WholeHolder(const comm::Group& data)
      : model_(training_model()),
        ddp_(model_, data),
        optimizer_(tensor::distinct_parameters(model_), AdamWOptions{.lr = 0.01}) {}

  checkpoint::Parts model_parts() const override { return checkpoint::whole_parts(model_.state_dict()); }
  checkpoint::Parts optimizer_parts() const override { return checkpoint::whole_parts(optim::state_dict(optimizer_)); }
  void save(const std::string& path, const comm::Group& world) const override {
    if (world.size() > 1) return Holder::save(path, world);
    checkpoint::save(path, {.model = model_.state_dict(), .optimizer = optim::state_dict(optimizer_), .step = 3});
  }
  void load(const std::string& path, const comm::Group&) override {
    const checkpoint::State state = checkpoint::load(path);
    checkpoint::restore_model(model_, state.model);
    optim::load_state_dict(optimizer_, state.optimizer);
  }

 private:
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t number) override { loss_of(ddp_.forward(ids_of(number)), number).backward(); }

  Model model_;
  DistributedDataParallel ddp_;
  AdamW optimizer_;
};

class ShardedHolder final : public Holder {
 public:
  explicit ShardedHolder(const comm::Group& data)
      : model_(training_model()),
        optimizer_(
            zero_optimizer(std::make_shared<AdamW>(tensor::distinct_parameters(model_), AdamWOptions{.lr = 0.01}),
                           model_, data, {.stage = 3, .bucket_bytes = 3000})) {}

  checkpoint::Parts model_parts() const override { return optimizer_->shards_of(optimizer_->local_parameters()); }
  checkpoint::Parts optimizer_parts() const override { return optimizer_->state_shards(); }
  void load(const std::string& path, const comm::Group& world) override {
    checkpoint::ShardedState state{.model = model_parts()};
    checkpoint::load_sharded(path, state, world, [&](const checkpoint::ShardedIndex& saved, auto& wanted) {
      wanted.optimizer = optimizer_->wanted_shards(optimizer_tensors(saved));
    });
    optimizer_->load_shards(state.optimizer);
    optimizer_->release_parameters();
  }

 private:
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  void backward(int64_t number) override { loss_of(model_.forward(ids_of(number)), number).backward(); }

  Model model_;
  std::shared_ptr<ShardedOptimizer> optimizer_;
};

class TensorHolder final : public Holder {
 public:
  explicit TensorHolder(const comm::Mesh& mesh)
      : layers_(divided(mesh)),
        ddp_(layers_.model(), mesh.group("data")),
        optimizer_(tensor::distinct_parameters(layers_.model()), AdamWOptions{.lr = 0.01}) {}

  checkpoint::Parts model_parts() const override { return layers_.shards(); }
  checkpoint::Parts optimizer_parts() const override { return layers_.state_shards(optimizer_); }
  void load(const std::string& path, const comm::Group& world) override {
    load_divided(path, layers_, optimizer_, world);
  }

 private:
  static TensorParallel divided(const comm::Mesh& mesh) {
    const Model model = training_model();
    return parallelize(model, mesh, "tensor", tensor_plan(model));
  }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t number) override {
    const auto scope = layers_.scope();
    loss_of(ddp_.forward(ids_of(number)), number).backward();
  }

  TensorParallel layers_;
  DistributedDataParallel ddp_;
  AdamW optimizer_;
};

class PipelineHolder final : public Holder {
 public:
  PipelineHolder(const comm::Mesh& mesh, bool divide_layers)
      : stages_(divided(mesh, divide_layers)), optimizer_(stages_.parameters(), AdamWOptions{.lr = 0.01}) {}

  checkpoint::Parts model_parts() const override { return stages_.shards(); }
  checkpoint::Parts optimizer_parts() const override { return stages_.state_shards(optimizer_); }
  void load(const std::string& path, const comm::Group& world) override {
    load_divided(path, stages_, optimizer_, world);
  }

 private:
  static Pipeline divided(const comm::Mesh& mesh, bool divide_layers) {
    StagedTraining run{.data = mesh.group("data")};
    if (divide_layers) run.tensor = mesh.group("tensor");
    return make_pipeline(tensor::gpt_task(), run, one_forward_one_backward(mesh.size("pipeline"), 2),
                         mesh.group("pipeline"));
  }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t number) override {
    stages_.step({ids_of(number)}, {targets_of(number)}, mean_token_loss, {.weight = token_count});
  }

  Pipeline stages_;
  AdamW optimizer_;
};

std::unique_ptr<Holder> hold(const Layout& layout, const comm::Mesh& mesh) {
  if (layout.pipeline > 1) return std::make_unique<PipelineHolder>(mesh, layout.tensor > 1);
  if (layout.tensor > 1) return std::make_unique<TensorHolder>(mesh);
  if (layout.sharded) return std::make_unique<ShardedHolder>(mesh.group("data"));
  return std::make_unique<WholeHolder>(mesh.group("data"));
}

/// The complete weights and optimizer state.
struct Complete {
  NamedTensors weights, state;
};

Complete complete(const Holder& holder, const comm::Group& world) {
  return {comm::gather(holder.model_parts(), world), comm::gather(holder.optimizer_parts(), world)};
}

void on_ranks(const Layout& layout, const std::function<void(Holder&, const comm::Mesh&, const comm::Group&)>& body) {
  run_ranks(layout.ranks(), [&](const comm::Group& world) {
    const comm::Mesh mesh(world, {{"data", layout.data}, {"pipeline", layout.pipeline}, {"tensor", layout.tensor}});
    const std::unique_ptr<Holder> holder = hold(layout, mesh);
    body(*holder, mesh, world);
    comm::barrier(world);
  });
}

Complete train_and_save(const Layout& layout, const std::string& path) {
  Complete saved;
  on_ranks(layout, [&](Holder& holder, const comm::Mesh& mesh, const comm::Group& world) {
    holder.train(3, mesh.coordinate("data"));
    holder.save(path, world);
    const Complete all = complete(holder, world);
    if (world.rank() == 0) saved = all;
  });
  return saved;
}

/// Returns the names of tensors that only one side has or that are not bit-identical.
std::vector<std::string> differences(const NamedTensors& got, const NamedTensors& expected) {
  std::map<std::string, at::Tensor> rest(expected.begin(), expected.end());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : got) {
    const auto other = rest.extract(name);
    const bool same =
        !other.empty() && tensor.scalar_type() == other.mapped().scalar_type() && tensor.equal(other.mapped());
    if (!same) names.push_back(name);
  }
  for (const auto& [name, tensor] : rest) names.push_back(name);
  return names;
}

void expect_reload(const Layout& layout, const std::string& path, const Complete& saved) {
  std::mutex reports;
  on_ranks(layout, [&](Holder& holder, const comm::Mesh&, const comm::Group& world) {
    const NamedTensors before = comm::gather(holder.model_parts(), world);
    holder.load(path, world);
    const Complete loaded = complete(holder, world);
    const std::lock_guard<std::mutex> lock(reports);
    EXPECT_EQ(differences(before, saved.weights).size(), saved.weights.size()) << "loading must change all weights";
    EXPECT_THAT(differences(loaded.weights, saved.weights), ::testing::IsEmpty());
    EXPECT_THAT(differences(loaded.state, saved.state), ::testing::IsEmpty());
  });
}

/// Pairs of different layouts, as indexes, in random order.
std::vector<std::pair<size_t, size_t>> random_pairs(size_t layouts, size_t count) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t writer = 0; writer < layouts; ++writer) {
    for (size_t reader = 0; reader < layouts; ++reader) {
      if (writer != reader) pairs.emplace_back(writer, reader);
    }
  }
  std::mt19937 random(20);
  for (size_t i = pairs.size() - 1; i > 0; --i) std::swap(pairs[i], pairs[random() % (i + 1)]);
  pairs.resize(count);
  return pairs;
}

TEST(Reload, CheckpointsMoveBetweenLayouts) {
  const std::vector<Layout> layouts = all_layouts();
  const TemporaryFolder folder;
  std::map<size_t, Complete> saved;
  for (const auto& [writer, reader] : random_pairs(layouts.size(), 20)) {
    SCOPED_TRACE(layouts[writer].name + " to " + layouts[reader].name);
    const std::string path = folder / ("step-" + std::to_string(writer));
    if (!saved.contains(writer)) saved[writer] = train_and_save(layouts[writer], path);
    ASSERT_GT(saved[writer].weights.size(), 20u);
    ASSERT_GT(saved[writer].state.size(), 2 * saved[writer].weights.size());
    expect_reload(layouts[reader], path, saved[writer]);
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
