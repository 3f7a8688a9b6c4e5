#include "bellows/plan/simulator/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bellows/plan/simulator/collective_cost.h"
#include "bellows/plan/simulator/mesh_search.h"
#include "bench/simulator/published.h"

namespace bellows::train {

namespace {

using ::testing::HasSubstr;

/// A small GPT without an output layer, whose operations are easy to compute by hand.
TransformerShape small_shape() {
  return {.name = "small",
          .layers = 8,
          .width = 64,
          .heads = 4,
          .kv_heads = 4,
          .head_width = 16,
          .inner = 256,
          .vocabulary = 1000,
          .positions = 32,
          .predicts_tokens = false};
}

/// 10^12 operations/s, memory that takes no time, and links of 10^9 bytes/s without latency.
Cluster simple_cluster(double overlap = 0) {
  Cluster cluster;
  cluster.name = "simple";
  cluster.devices_per_node = 8;
  cluster.memory_bytes = 1e12;
  cluster.memory_bytes_per_second = 1e18;
  cluster.flops = {{"fp32", 1e12}, {"bf16", 1e12}};
  cluster.attention_achieved = 1;
  cluster.overlap = overlap;
  cluster.within = cluster.between = {1e9, 0};
  return cluster;
}

SimulatedJob small_job(int64_t batch = 16) {
  SimulatedJob job;
  job.batch = batch;
  job.dtype = "fp32";
  return job;
}

/// Operations of forward in one layer for each sample of 32 tokens, by hand.
double layer_operations() {
  const double linear = 2 * 32.0 * (4 * 64 * 64 + 2 * 64 * 256);
  const double attention = 2 * 32.0 * 32 * 64;  // half of all pairs
  return linear + attention;
}

/// Operations of forward and backward.
double step_operations(double samples) {
  const double attention = 2 * 32.0 * 32 * 64;
  return 8 * samples * (3 * (layer_operations() - attention) + 3.5 * attention);
}

}  // namespace

TEST(TransformerShape, CountsTheParametersOfGpt2AndLlama) {
  EXPECT_EQ(transformer_shape("gpt2").parameters(), 124'439'808);
  const std::string folder = BELLOWS_SOURCE_DIR "/bench/simulator/";
  EXPECT_EQ(transformer_shape(folder + "llama-3.1-8b.json").parameters(), 8'030'261'248);
  EXPECT_EQ(transformer_shape(folder + "llama-3.1-70b.json").parameters(), 70'553'706'496);
}

TEST(TransformerShape, RejectsOtherModels) {
  EXPECT_THROW(transformer_shape("resnet18"), c10::ValueError);
  EXPECT_THROW(transformer_shape("no such model"), c10::ValueError);
  EXPECT_THROW(transformer_shape("/no/such/config.json"), c10::ValueError);
}

TEST(Cluster, SurvivesYaml) {
  Cluster cluster = simple_cluster(0.25);
  cluster.achieved["bf16"] = 0.1 + 0.2;
  cluster.shared = true;
  cluster.between = {5e8, 1e-5};
  EXPECT_EQ(parse_cluster(to_yaml(cluster), "test"), cluster);
}

TEST(Cluster, NamesWrongKeysAndValues) {
  const auto message = [](const std::string& text) {
    try {
      parse_cluster(text, "c.yaml");
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  EXPECT_THAT(message("[1, 2]"), HasSubstr("expected a map"));
  EXPECT_THAT(message("memory_byte: 1"), HasSubstr("memory_bytes"));
  EXPECT_THAT(message("memory_bytes: much"), HasSubstr("found \"much\""));
  EXPECT_THAT(message("{memory_bytes: 1e9, memory_bytes_per_second: 1e9}"), HasSubstr("expected flops"));
  EXPECT_THAT(message("{memory_bytes: 1e9, memory_bytes_per_second: 1e9, flops: {bf16: 1e12}}"), HasSubstr("within"));
  EXPECT_THAT(message("{memory_bytes: -1}"), HasSubstr("memory_bytes"));
  EXPECT_THAT(message("{a: [}"), HasSubstr("not valid YAML"));
  EXPECT_THAT(message("{memory_bytes: 1e9, memory_bytes: 1e8}"), HasSubstr("\"memory_bytes\" occurs twice"));
  EXPECT_THAT(message("{devices_per_node: 1.5}"), HasSubstr("whole number, found 1.5"));
  EXPECT_THAT(message("{name: [a, b]}"), HasSubstr("expected name to be text"));
  EXPECT_THAT(message("{memory_bytes: 1e9, memory_bytes_per_second: 1e9, flops: {bf16: 1e12}, achieved: {fp32: 0.5}}"),
              HasSubstr("achieved has the dtype fp32"));
}

TEST(SimulatedMesh, ParsesAndPrints) {
  const SimulatedMesh mesh = parse_simulated_mesh("{data: 2, tensor: 4}");
  EXPECT_EQ(mesh.ranks(), 8);
  EXPECT_EQ(mesh.to_string(), "{data: 2, tensor: 4}");
  EXPECT_EQ(parse_simulated_mesh("data: 2, tensor: 4"), mesh);
  for (const char* wrong : {"{tensors: 2}", "{data: 0}", "{data: x}", "data", "{data: 2, data: 2}", "{data: [2}",
                            "{data: 4096, tensor: 8192}"})
    EXPECT_THROW(parse_simulated_mesh(wrong), c10::ValueError) << wrong;
}

TEST(CollectiveCost, IsThatOfRings) {
  const ClusterLink link{1e9, 1e-3};
  EXPECT_DOUBLE_EQ(gather_seconds(link, 4, 8e9), 3 * (1e-3 + 2));
  EXPECT_DOUBLE_EQ(all_reduce_seconds(link, 4, 8e9), 6 * (1e-3 + 2));
  Cluster cluster = simple_cluster();
  cluster.between = {1e8, 1e-4};
  EXPECT_EQ(ring_link(cluster, 8, 1, 8), cluster.within);
  EXPECT_DOUBLE_EQ(ring_link(cluster, 16, 1, 16).bytes_per_second, 8e8);  // all links of a node
  EXPECT_DOUBLE_EQ(ring_link(cluster, 2, 8, 16).bytes_per_second, 1e8);   // one link
  EXPECT_DOUBLE_EQ(ring_link(cluster, 2, 8, 16).latency_s, 1e-4);
}

TEST(Simulator, OneRankTakesTheTimeOfItsOperations) {
  const Simulation one = simulate(small_shape(), simple_cluster(), {}, small_job());
  EXPECT_NEAR(one.time.total(), step_operations(16) / 1e12, 1e-9);
  EXPECT_NEAR(one.time.compute_s, one.time.total(), 1e-9);
  SimulatedJob job = small_job();
  job.recomputed = Recomputed::blocks;
  const Simulation again = simulate(small_shape(), simple_cluster(), {}, job);
  EXPECT_NEAR(again.time.recomputed_s, 8 * 16 * layer_operations() / 1e12, 1e-9);
}

TEST(Simulator, DataParallelismAddsOneAllReduce) {
  const TransformerShape shape = small_shape();
  const SimulatedMesh mesh{.data = 4};
  const double parameters = static_cast<double>(8 * shape.layer_parameters() + shape.embedding_parameters());
  const double exchange = 2 * 3 / 4.0 * 4 * parameters / 1e9;
  const Simulation plain = simulate(shape, simple_cluster(), mesh, small_job());
  EXPECT_NEAR(plain.time.compute_s, step_operations(4) / 1e12, 1e-9);
  EXPECT_NEAR(plain.time.data_s, exchange, 1e-9);
  const Simulation hidden = simulate(shape, simple_cluster(1), mesh, small_job());
  EXPECT_LT(hidden.time.data_s, plain.time.data_s);
  EXPECT_GT(hidden.time.data_s, 0);  // the last gradients cannot overlap
}

TEST(Simulator, TensorParallelismAddsFourAllReducesPerLayer) {
  const SimulatedMesh mesh{.tensor = 4};
  const Simulation result = simulate(small_shape(), simple_cluster(), mesh, small_job());
  EXPECT_NEAR(result.time.compute_s, step_operations(16) / 4 / 1e12, 1e-9);
  const double activations = 16 * 32 * 64 * 4.0;
  const double all_reduce = 2 * 3 / 4.0 * activations / 1e9;
  EXPECT_NEAR(result.time.tensor_s, (8 * 4 + 1) * all_reduce, 1e-9);  // and one of the embedding
}

TEST(Simulator, ContextParallelismPassesKeysAndValuesAround) {
  SimulatedJob job = small_job();
  job.zero_stage = 0;
  const SimulatedMesh mesh{.context = 4};
  const Simulation result = simulate(small_shape(), simple_cluster(), mesh, job);
  EXPECT_NEAR(result.time.compute_s, step_operations(16) / 4 / 1e12, 1e-9);
  const double block = 16 * 8 * 2 * 64 * 4.0;  // keys and values of 8 tokens of each sample
  EXPECT_NEAR(result.time.context_s, 8 * 3 * 3 * block / 1e9, 1e-9);
  job.zigzag = false;
  EXPECT_GT(simulate(small_shape(), simple_cluster(), mesh, job).time.compute_s, result.time.compute_s);
}

TEST(Simulator, PipelinesHaveTheBubbleOfTheirSchedule) {
  TransformerShape shape = small_shape();
  shape.vocabulary = 1;  // stages take equal time
  Cluster cluster = simple_cluster();
  cluster.within = cluster.between = {1e18, 0};
  SimulatedJob job = small_job();
  job.micro_batches = 8;
  const auto share = [&](const char* schedule) {
    job.schedule = schedule;
    const SimulatedTime time = simulate(shape, cluster, {.pipeline = 4}, job).time;
    return time.bubble_s / time.total();
  };
  EXPECT_NEAR(share("1f1b"), 3 / 11.0, 1e-3);
  EXPECT_NEAR(share("gpipe"), 3 / 11.0, 1e-3);
  EXPECT_NEAR(share("interleaved"), 3 / 19.0, 1e-3);
  EXPECT_LT(share("zero_bubble"), 0.2);
}

TEST(Simulator, ActivationsFollowMegatronsFormulas) {
  const TransformerShape shape = small_shape();
  SimulatedJob job = small_job(2);
  job.dtype = "bf16";
  job.fused_attention = false;
  const double tokens = 2 * 32, sbh = tokens * 64, scores = 5 * 4 * 32.0 / 64;
  EXPECT_DOUBLE_EQ(activation_bytes(shape, {}, job), sbh * (34 + scores));
  EXPECT_DOUBLE_EQ(activation_bytes(shape, {.tensor = 4}, job), sbh * (10 + 24 / 4.0 + scores / 4));
  job.recomputed = Recomputed::attention;
  EXPECT_DOUBLE_EQ(activation_bytes(shape, {.tensor = 4}, job), sbh * (10 + 24 / 4.0));
  job.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(activation_bytes(shape, {.tensor = 4}, job), sbh * 34 / 4.0);
  job.recomputed = Recomputed::blocks;
  EXPECT_DOUBLE_EQ(activation_bytes(shape, {}, job), sbh * 2);
}

TEST(Simulator, ZeroDividesStateThenGradientsThenParameters) {
  const TransformerShape shape = small_shape();
  const double parameters = static_cast<double>(8 * shape.layer_parameters() + shape.embedding_parameters());
  SimulatedJob job = small_job();
  const double expected[][3] = {{4, 4, 8}, {4, 4, 2}, {4, 1, 2}, {1, 1, 2}};
  for (int stage = 0; stage <= 3; ++stage) {
    job.zero_stage = stage;
    const SimulatedMemory memory = simulate(shape, simple_cluster(), {.data = 4}, job).memory;
    EXPECT_DOUBLE_EQ(memory.parameters, expected[stage][0] * parameters);
    EXPECT_DOUBLE_EQ(memory.gradients, expected[stage][1] * parameters);
    EXPECT_DOUBLE_EQ(memory.state, expected[stage][2] * parameters);
  }
}

TEST(Simulator, PipelinesKeepTheMicroBatchesInFlight) {
  SimulatedJob job = small_job();
  job.micro_batches = 8;
  const double layer = activation_bytes(small_shape(), {.pipeline = 4}, job);
  const auto activations = [&](const char* schedule) {
    job.schedule = schedule;
    return simulate(small_shape(), simple_cluster(), {.pipeline = 4}, job).memory.activations;
  };
  EXPECT_DOUBLE_EQ(activations("1f1b"), 4 * 2 * layer);
  EXPECT_DOUBLE_EQ(activations("gpipe"), 8 * 2 * layer);
}

TEST(Simulator, SlowerLinksAndMoreSamplesTakeLonger) {
  const std::vector<SimulatedMesh> meshes = {{.data = 4}, {.shard = 4}, {.context = 4}, {.tensor = 4}, {.pipeline = 4}};
  for (const SimulatedMesh& mesh : meshes) {
    SimulatedJob job = small_job();
    job.micro_batches = 4;
    job.zero_stage = mesh.shard > 1 ? 3 : 0;
    Cluster slow = simple_cluster();
    slow.within.bytes_per_second /= 2;
    const double time = simulate(small_shape(), simple_cluster(), mesh, job).time.total();
    EXPECT_GT(simulate(small_shape(), slow, mesh, job).time.total(), time) << mesh.to_string();
    job.batch *= 2;
    EXPECT_GT(simulate(small_shape(), simple_cluster(), mesh, job).time.total(), time) << mesh.to_string();
  }
}

TEST(Simulator, RanksThatShareCoresTakeTurns) {
  Cluster cluster = simple_cluster();
  cluster.shared = true;
  cluster.devices_per_node = 2;
  SimulatedJob job = small_job();
  const auto compute = [&](int64_t ranks) {
    return simulate(small_shape(), cluster, {.data = ranks}, job).time.compute_s;
  };
  EXPECT_NEAR(compute(2), compute(1), 1e-9);
  EXPECT_NEAR(compute(8), compute(1), 1e-9);
  job.threads = 1;
  EXPECT_NEAR(compute(1), 2 * compute(2), 1e-9);
}

TEST(Simulator, WaitingRanksLeaveTheirCoresToOthers) {
  Cluster cluster = simple_cluster();
  cluster.shared = true;
  cluster.devices_per_node = 2;
  cluster.within = {1e18, 0};
  SimulatedJob job = small_job();
  job.micro_batches = 16;
  const auto step = [&](int64_t ranks) { return simulate(small_shape(), cluster, {.pipeline = ranks}, job).time; };
  EXPECT_NEAR(step(2).bubble_s / step(2).total(), 1 / 17.0, 1e-3);
  EXPECT_NEAR(step(8).bubble_s, 0, 1e-9);
  EXPECT_NEAR(step(8).total(), step(2).total() * 16 / 17, 1e-6);
}

TEST(Simulator, CopiesOfShardsExchangeInEachMicroBatch) {
  SimulatedJob job = small_job(32);
  job.zero_stage = 2;
  const auto exchange_s = [&](const SimulatedMesh& mesh, int64_t micro_batches, double overlap) {
    job.micro_batches = micro_batches;
    return simulate(small_shape(), simple_cluster(overlap), mesh, job).time.data_s;
  };
  const SimulatedMesh one = {.shard = 4}, two = {.data = 2, .shard = 4};
  const double bytes = 4 * static_cast<double>(small_shape().parameters() - 2 * 64);  // without the last norm
  const double copies_s = bytes / 4 / 1e9;                                            // two ranks all-reduce a shard
  EXPECT_NEAR(exchange_s(two, 1, 0) - exchange_s(one, 1, 0), copies_s, 1e-9);
  EXPECT_NEAR(exchange_s(two, 4, 0) - exchange_s(one, 4, 0), 4 * copies_s, 1e-9);
  // Computation hides a part of it.
  EXPECT_LT(exchange_s(two, 1, 1), exchange_s(two, 1, 0));
}

TEST(Simulator, CalibrationReproducesAMeasuredTime) {
  SimulatedJob job = small_job();
  job.threads = 1;
  const Cluster cluster = calibrate(simple_cluster(), small_shape(), {.data = 2}, job, 0.02);
  EXPECT_NEAR(simulate(small_shape(), cluster, {.data = 2}, job).time.total(), 0.02, 1e-6);
  EXPECT_THROW(calibrate(simple_cluster(), small_shape(), {.data = 2}, job, 1e-9), c10::ValueError);
}

TEST(Simulator, RejectsJobsThatCannotRun) {
  const auto problem = [](const SimulatedMesh& mesh, const SimulatedJob& job) {
    return job_problem(small_shape(), mesh, job);
  };
  SimulatedJob job = small_job();
  EXPECT_EQ(problem({}, job), "");
  EXPECT_THAT(problem({.data = 3}, job), HasSubstr("multiple of 3"));
  EXPECT_THAT(problem({.tensor = 3}, job), HasSubstr("attention heads, 4"));
  EXPECT_THAT(problem({.context = 5}, job), HasSubstr("length, 32"));
  EXPECT_THAT(problem({.pipeline = 16}, job), HasSubstr("the model has 8"));
  job.schedule = "1f2b";
  EXPECT_THAT(problem({.pipeline = 2}, job), HasSubstr("1f1b"));
  job.schedule = "interleaved";
  EXPECT_THAT(problem({.pipeline = 2}, job), HasSubstr("multiple of 2 micro-batches"));
  job.dtype = "int8";
  EXPECT_THROW(simulate(small_shape(), simple_cluster(), {}, job), c10::ValueError);
  job = small_job();
  job.dtype = "fp8";
  EXPECT_THROW(simulate(small_shape(), simple_cluster(), {}, job), c10::ValueError);  // the cluster has no such rate
}

TEST(MeshSearch, ChoosesTheFastestMeshThatFits) {
  const MeshSearch search = search_meshes(small_shape(), simple_cluster(1), small_job(64), 4);
  ASSERT_TRUE(search.fits());
  EXPECT_THAT(search.reason, HasSubstr(search.candidates[0].mesh.to_string()));
  for (const Simulation& candidate : search.candidates) {
    EXPECT_EQ(candidate.mesh.ranks(), 4);
    EXPECT_GE(candidate.time.total(), search.candidates[0].time.total());
  }
  EXPECT_EQ(search.candidates.size(), 10u);  // ways to write 4 as a product of four axes
}

TEST(MeshSearch, NamesTheOptimizerIfItsStepIsSlow) {
  Cluster cluster = simple_cluster(1);
  cluster.within = cluster.between = {1e18, 0};
  SimulatedJob job = small_job(64);
  job.state_bytes = 1e10;
  cluster.memory_bytes = 1e18;
  const MeshSearch search = search_meshes(small_shape(), cluster, job, 4);
  EXPECT_THAT(search.reason, HasSubstr("the optimizer's step takes"));
}

TEST(MeshSearch, SavesMemoryWhenNeeded) {
  Cluster cluster = simple_cluster(1);
  const SimulatedJob job = small_job(64);
  const MeshSearch plain = search_meshes(small_shape(), cluster, job, 4);
  cluster.memory_bytes = simulate(small_shape(), cluster, {.data = 4}, job).memory.total() * 0.9;
  const MeshSearch tight = search_meshes(small_shape(), cluster, job, 4);
  ASSERT_TRUE(tight.fits());
  EXPECT_LE(tight.candidates[0].memory.total(), cluster.memory_bytes);
  EXPECT_GE(tight.candidates[0].time.total(), plain.candidates[0].time.total());
  cluster.memory_bytes = 1000;
  const MeshSearch none = search_meshes(small_shape(), cluster, job, 4);
  EXPECT_FALSE(none.fits());
  EXPECT_THAT(none.reason, HasSubstr("No mesh fits"));
  EXPECT_THROW(search_meshes(small_shape(), cluster, small_job(1), 3), c10::ValueError);
}

/// docs/simulator.md states the errors.
TEST(Simulator, PredictsPublishedThroughputs) {
  int predicted = 0;
  for (const bench::PublishedRow& row : bench::simulate_published(BELLOWS_SOURCE_DIR "/bench/simulator")) {
    const double limit = row.fitted ? 0.01 : row.eager ? 0.20 : 0.19;
    EXPECT_LT(std::abs(row.speed_error()), limit) << row.name << ": " << row.simulation.tokens_per_second_per_rank;
    EXPECT_LT(row.memory_error(), 0.05) << row.name;
    EXPECT_GT(row.memory_error(), -0.40) << row.name;
    predicted += row.fitted ? 0 : 1;
  }
  EXPECT_EQ(predicted, 16);
}

}  // namespace bellows::train
