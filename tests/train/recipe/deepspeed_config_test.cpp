#include "bellows/train/recipe/deepspeed_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/train/recipe/deepspeed_keys.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Imports a configuration, and checks that its recipe can be read.
ImportedRecipe imported(const std::string& json, int64_t ranks = 1) {
  ImportedRecipe result = import_deepspeed_config(json, "ds.json", ranks);
  EXPECT_EQ(Recipe::parse(result.to_yaml()), result.recipe) << result.to_yaml();
  return result;
}

std::string import_error(const std::string& json, int64_t ranks = 1) {
  return error_of([&] { import_deepspeed_config(json, "ds.json", ranks); });
}

std::vector<std::string> not_imported(const ImportedRecipe& result) {
  std::vector<std::string> keys;
  for (const UnsupportedKey& key : result.unsupported) {
    EXPECT_NE(key.reason, "") << key.key;
    keys.push_back(key.key);
  }
  return keys;
}

/// "VALUE: REASON" of a key that is not imported; "" if there is none.
std::string report_on(const ImportedRecipe& result, const std::string& key) {
  const auto found = std::ranges::find(result.unsupported, key, &UnsupportedKey::key);
  return found == result.unsupported.end() ? "" : found->value + ": " + found->reason;
}

std::string optimizer_json(const std::string& type, const std::string& params) {
  return R"({"optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
}

std::string scheduler_json(const std::string& type, const std::string& params) {
  return R"({"scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
}

}  // namespace

TEST(DeepSpeedConfig, AnEmptyConfigurationIsTheDefaultRecipe) {
  const ImportedRecipe result = imported("{}");
  EXPECT_EQ(result.recipe, Recipe{});
  EXPECT_THAT(result.changed, IsEmpty());
  EXPECT_THAT(result.unsupported, IsEmpty());
  EXPECT_EQ(result.to_yaml(), "");
}

TEST(DeepSpeedConfig, TheTableIsConsistent) {
  std::set<std::string_view> paths;
  std::set<std::string> recipe_keys;
  for (const RecipeField& field : recipe_fields()) recipe_keys.insert(field.name);
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    const size_t dot = key.path.rfind('.');
    if (dot != key.path.npos) {
      const DeepSpeedKey* section = find_deepspeed_key(key.path.substr(0, dot));
      ASSERT_NE(section, nullptr) << key.path;
      EXPECT_EQ(section->kind, DeepSpeedKind::section) << key.path;
    }
    EXPECT_TRUE(key.recipe_key.empty() || recipe_keys.contains(std::string(key.recipe_key))) << key.path;
    const bool feature = key.kind == DeepSpeedKind::feature, all_values = !feature && key.harmless == "*";
    const std::string values = "[" + std::string(key.harmless) + "]";
    EXPECT_TRUE(feature || all_values || nlohmann::json::accept(values)) << key.path;
    EXPECT_TRUE(all_values || !key.advice.empty()) << key.path;
  }
}

TEST(DeepSpeedConfig, EachZeroStageIsAStrategy) {
  const char* strategies[] = {"ddp", "zero1", "zero2", "zero3"};
  for (int stage = 0; stage < 4; ++stage) {
    const ImportedRecipe result = imported(c10::str(R"({"zero_optimization": {"stage": )", stage, "}}"));
    EXPECT_EQ(result.recipe.data_parallel, strategies[stage]);
    EXPECT_THAT(result.unsupported, IsEmpty());
    EXPECT_EQ(result.changed.size(), stage == 0 ? 0u : 1u);
  }
  EXPECT_EQ(imported(R"({"zero_optimization": true})").recipe.data_parallel, "zero1");  // before version 0.2
  EXPECT_THAT(import_error(R"({"zero_optimization": {"stage": 4}})"),
              HasSubstr("import: ds.json: zero_optimization.stage: expected an integer from 0 to 3, found 4."));
}

TEST(DeepSpeedConfig, TwoBatchSizesDetermineTheThird) {
  struct Case {
    const char* json;
    int64_t batch_size, accumulated;
  };
  for (const auto& [json, batch_size, accumulated] : {
           Case{R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})",
                32, 2},
           Case{R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4})", 32, 2},
           Case{R"({"train_batch_size": 64, "gradient_accumulation_steps": 2})", 32, 2},
           Case{R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})", 32, 2},
           Case{R"({"train_batch_size": 64})", 64, 1},
           Case{R"({"train_batch_size": 6.4e1, "train_micro_batch_size_per_gpu": null})", 64, 1},
           Case{R"({"train_micro_batch_size_per_gpu": 5})", 40, 1},
           Case{R"({"gradient_accumulation_steps": 3})", Recipe{}.batch_size, 3},
       }) {
    const ImportedRecipe result = imported(json, /*ranks=*/8);
    EXPECT_EQ(result.recipe.batch_size, batch_size) << json;
    EXPECT_EQ(result.recipe.gradient_accumulation_steps, accumulated) << json;
    EXPECT_THAT(result.unsupported, IsEmpty()) << json;
  }
}

TEST(DeepSpeedConfig, ContradictingBatchSizesAreExplained) {
  const std::string all =
      R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})";
  EXPECT_THAT(import_error(all), AllOf(HasSubstr("ds.json: train_batch_size: expected "),
                                       HasSubstr(" = 4 × 2 × 1 = 8, found 64. Set `ranks` to 8.")));
  EXPECT_THAT(import_error(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})"),
              HasSubstr(" = 4 × 2 × 1 = 8, found 10. Change one of these numbers."));
  EXPECT_THAT(import_error(R"({"train_batch_size": 4})", 8), HasSubstr(" = 1 × 1 × 8 = 8, found 4. Set `ranks` to 4."));
  EXPECT_THAT(import_error(R"({"train_micro_batch_size_per_gpu": 1048576})", 2),
              HasSubstr("train_micro_batch_size_per_gpu: expected an integer of 1 to 1048576 for the recipe key "
                        "batch_size, found 1048576."));
  EXPECT_THAT(import_error(R"({"train_batch_size": 0})"),
              HasSubstr("ds.json: train_batch_size: expected an integer from 1 to"));
  EXPECT_THAT(import_error("{}", 0), HasSubstr("expected `ranks` from 1 to 1048576, found 0."));
}

TEST(DeepSpeedConfig, OptimizersHaveTheDefaultsOfDeepSpeed) {
  const ImportedRecipe adam = imported(optimizer_json("Adam", R"("lr": 3e-4, "weight_decay": 0.1)"));
  EXPECT_EQ(adam.recipe.optimizer, "adamw");
  EXPECT_EQ(adam.recipe.lr, 3e-4);
  EXPECT_EQ(adam.recipe.weight_decay, 0.1);
  EXPECT_THAT(adam.changed, ElementsAre("optimizer", "lr", "weight_decay"));
  EXPECT_THAT(adam.unsupported, IsEmpty());
  EXPECT_EQ(imported(optimizer_json("adam", R"("adam_w_mode": false)")).recipe.optimizer, "adam");
  const Recipe adamw = imported(optimizer_json("AdamW", "")).recipe;
  EXPECT_EQ(adamw.lr, 1e-3);
  EXPECT_EQ(adamw.weight_decay, 0);
  EXPECT_EQ(imported(optimizer_json("AdamW", R"("torch_adam": true)")).recipe.weight_decay, 0.01);
  const Recipe sgd = imported(optimizer_json("SGD", R"("lr": 0.1)")).recipe;
  EXPECT_EQ(sgd.optimizer, "sgd");
  EXPECT_EQ(sgd.momentum, 0);
  EXPECT_EQ(imported(optimizer_json("SGD", R"("momentum": 0.8)")).recipe.momentum, 0.8);
  EXPECT_EQ(imported(optimizer_json("Adagrad", R"("eps": 1e-10)")).recipe.optimizer, "adagrad");
}

TEST(DeepSpeedConfig, OptimizerSettingsWithoutARecipeKeyAreReported) {
  EXPECT_THAT(imported(optimizer_json("AdamW", R"("betas": [0.9, 0.999], "eps": 1e-8)")).unsupported, IsEmpty());
  const ImportedRecipe other = imported(optimizer_json("AdamW", R"("betas": [0.9, 0.95], "eps": 1e-6)"));
  EXPECT_THAT(report_on(other, "optimizer.params.betas"), HasSubstr("[0.9,0.95]: A recipe always uses [0.9, 0.999]."));
  EXPECT_THAT(report_on(other, "optimizer.params.eps"), HasSubstr("A recipe always uses 1e-8."));
  EXPECT_THAT(report_on(imported(optimizer_json("Lion", "")), "optimizer.params.betas"),
              HasSubstr("[0.9, 0.999] (default): A recipe always uses [0.9, 0.99]."));
  EXPECT_THAT(imported(optimizer_json("Lion", R"("betas": [0.9, 0.99])")).unsupported, IsEmpty());
  const ImportedRecipe one_bit = imported(optimizer_json("OneBitAdam", R"("lr": 1e-4, "freeze_step": 400)"));
  EXPECT_EQ(one_bit.recipe.optimizer, "adamw");
  EXPECT_THAT(not_imported(one_bit), ElementsAre("optimizer.params.freeze_step", "optimizer.type"));
  const ImportedRecipe lamb = imported(optimizer_json("Lamb", R"("lr": 1e-3)"));
  EXPECT_EQ(lamb.recipe, Recipe{});
  EXPECT_THAT(report_on(lamb, "optimizer.type"), HasSubstr("\"Lamb\": There is no such optimizer in a recipe"));
  EXPECT_THAT(not_imported(imported(R"({"optimizer": {"params": {"lr": 1}}})")), ElementsAre("optimizer"));
  EXPECT_THAT(not_imported(imported(optimizer_json("SGD", R"("lr": 0, "nesterov": true)"))),
              ElementsAre("optimizer.params.lr", "optimizer.params.nesterov"));
}

TEST(DeepSpeedConfig, WarmupSchedulesKeepTheirDecay) {
  const ImportedRecipe constant = imported(scheduler_json(
      "WarmupLR", R"("warmup_min_lr": 0, "warmup_max_lr": 0.003, "warmup_num_steps": 100, "warmup_type": "linear")"));
  EXPECT_EQ(constant.recipe.lr_schedule, "constant");
  EXPECT_EQ(constant.recipe.lr, 0.003);
  EXPECT_THAT(not_imported(constant), ElementsAre("scheduler.params.warmup_num_steps"));
  EXPECT_THAT(report_on(constant, "scheduler.params.warmup_num_steps"), HasSubstr("100: A recipe counts the warmup"));
  const ImportedRecipe defaults = imported(scheduler_json("WarmupLR", ""));
  EXPECT_THAT(report_on(defaults, "scheduler.params.warmup_num_steps"), HasSubstr("1000 (default): "));
  EXPECT_THAT(report_on(defaults, "scheduler.params.warmup_type"), HasSubstr("\"log\" (default): "));
  const ImportedRecipe linear =
      imported(scheduler_json("WarmupDecayLR", R"("warmup_num_steps": 0, "total_num_steps": 5000)"));
  EXPECT_EQ(linear.recipe.lr_schedule, "linear");
  EXPECT_EQ(linear.recipe.lr, 1e-3);
  EXPECT_THAT(not_imported(linear), ElementsAre("scheduler.params.total_num_steps"));
  const ImportedRecipe cosine =
      imported(scheduler_json("WarmupCosineLR", R"("warmup_num_steps": 0, "cos_min_ratio": 0.1)"));
  EXPECT_EQ(cosine.recipe.lr_schedule, "cosine");
  EXPECT_EQ(cosine.recipe.lr_schedule_end, 0.1);
  EXPECT_THAT(cosine.unsupported, IsEmpty());
  EXPECT_EQ(imported(scheduler_json("WarmupCosineLR", "")).recipe.lr_schedule_end, 1e-4);
}

TEST(DeepSpeedConfig, OtherSchedulesAreImportedOrReported) {
  const ImportedRecipe cycle = imported(scheduler_json(
      "OneCycle", R"("cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 1000, "decay_lr_rate": 0)"));
  EXPECT_EQ(cycle.recipe.lr_schedule, "one_cycle");
  EXPECT_EQ(cycle.recipe.lr, 0.01);
  EXPECT_DOUBLE_EQ(cycle.recipe.lr_schedule_end, 0.1);
  EXPECT_THAT(not_imported(cycle), ElementsAre("scheduler.params.cycle_first_step_size"));
  EXPECT_THAT(import_error(scheduler_json("OneCycle", R"("cycle_min_lr": 0.1, "cycle_max_lr": 0.01)")),
              HasSubstr("scheduler.params.cycle_min_lr: expected a number from 0 to cycle_max_lr, found 0.1."));
  const ImportedRecipe range = imported(scheduler_json("LRRangeTest", R"("lr_range_test_min_lr": 1e-4)"));
  EXPECT_EQ(range.recipe, Recipe{});
  EXPECT_THAT(not_imported(range), ElementsAre("scheduler.type"));
}

TEST(DeepSpeedConfig, OnePrecisionCanBeOn) {
  EXPECT_EQ(imported(R"({"fp16": {"enabled": true}})").recipe.precision, "fp16");
  EXPECT_EQ(imported(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})").recipe.precision, "bf16");
  EXPECT_EQ(imported(R"({"bfloat16": {"enabled": true}})").recipe.precision, "bf16");
  EXPECT_EQ(imported(R"({"torch_autocast": {"enabled": true, "dtype": "float16"}})").recipe.precision, "fp16");
  EXPECT_EQ(imported(R"({"torch_autocast": {"enabled": true}})").recipe.precision, "bf16");
  EXPECT_EQ(imported(R"({"fp16": {}})").recipe, Recipe{});
  const std::string apex = R"("amp": {"enabled": true, "opt_level": "O2"})";
  const Recipe o2 = imported("{" + apex + "}").recipe;
  EXPECT_EQ(o2.precision, "fp16");
  EXPECT_EQ(o2.amp_level, "O2");
  const ImportedRecipe clipped = imported(R"({"gradient_clipping": 1.0, )" + apex + "}");
  EXPECT_EQ(clipped.recipe.amp_level, "O1");
  EXPECT_THAT(not_imported(clipped), ElementsAre("amp.opt_level"));
  EXPECT_THAT(import_error(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
              HasSubstr("ds.json: bf16.enabled: expected false, because fp16.enabled is true, found true."));
  EXPECT_THAT(import_error(R"({"amp": {"enabled": true, "opt_level": "O9"}})"),
              HasSubstr("amp.opt_level: expected O0, O1, O2 or O3, found \"O9\"."));
}

TEST(DeepSpeedConfig, LossScaleSettingsCountOnlyWithFp16) {
  const std::string settings = R"("loss_scale": 128, "hysteresis": 4, "loss_scale_window": 1000, "auto_cast": true)";
  EXPECT_THAT(imported(R"({"fp16": {"enabled": false, )" + settings + "}}").unsupported, IsEmpty());
  const ImportedRecipe on = imported(R"({"fp16": {"enabled": true, )" + settings + "}}");
  EXPECT_THAT(not_imported(on), ElementsAre("fp16.hysteresis", "fp16.loss_scale"));
  EXPECT_THAT(report_on(on, "fp16.loss_scale"), HasSubstr("128: Bellows always adapts the loss scale"));
}

TEST(DeepSpeedConfig, BucketsAreConvertedFromElementsToMebibytes) {
  const auto bucket = [](const std::string& settings) {
    return imported(R"({"zero_optimization": {)" + settings + "}}").recipe.bucket_mb;
  };
  EXPECT_EQ(bucket(R"("stage": 2, "reduce_bucket_size": 2e7)"), 77);  // 20 million elements of 4 bytes
  EXPECT_EQ(bucket(R"("stage": 2, "reduce_bucket_size": 5e8)"), 25);  // DeepSpeed's default
  EXPECT_EQ(bucket(R"("stage": 1, "reduce_bucket_size": 0)"), 1);
  EXPECT_EQ(bucket(R"("stage": 0, "reduce_bucket_size": 2e7)"), 25);
  EXPECT_EQ(bucket(R"("stage": 3, "stage3_prefetch_bucket_size": 1e7)"), 39);
  EXPECT_EQ(bucket(R"("stage": 2, "stage3_prefetch_bucket_size": 1e7)"), 25);
  const ImportedRecipe two =
      imported(R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": 2e7, "stage3_prefetch_bucket_size": 1e7}})");
  EXPECT_EQ(two.recipe.bucket_mb, 77);
  EXPECT_THAT(not_imported(two), ElementsAre("zero_optimization.stage3_prefetch_bucket_size"));
  const ImportedRecipe large = imported(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e9}})");
  EXPECT_EQ(large.recipe.bucket_mb, 4096);
  EXPECT_THAT(report_on(large, "zero_optimization.reduce_bucket_size"), HasSubstr("7630 MiB"));
}

TEST(DeepSpeedConfig, CommunicationInLowPrecisionDependsOnTheStage) {
  const std::string half = R"("communication_data_type": "fp16")";
  EXPECT_EQ(imported("{" + half + "}").recipe.gradient_compression, "fp16");
  EXPECT_EQ(imported(R"({"communication_data_type": "fp32"})").recipe, Recipe{});
  const ImportedRecipe sharded = imported(R"({"zero_optimization": {"stage": 2}, )" + half + "}");
  EXPECT_EQ(sharded.recipe.gradient_compression, "none");
  EXPECT_THAT(not_imported(sharded), ElementsAre("communication_data_type"));
  EXPECT_THAT(import_error(R"({"communication_data_type": "int8"})"),
              HasSubstr("communication_data_type: expected fp32, fp16 or bf16, found \"int8\"."));
  const std::string sums = R"({"data_types": {"grad_accum_dtype": "bf16"}})";
  EXPECT_EQ(imported(sums).recipe.gradient_accumulation_dtype, "bf16");
  EXPECT_THAT(not_imported(imported(sums, 2)), ElementsAre("data_types.grad_accum_dtype"));
}

TEST(DeepSpeedConfig, OffloadingIsImportedAndQuantizedShardsAreReported) {
  const ImportedRecipe none = imported(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none", "nvme_path": "/x"},
          "offload_param": {}, "zero_quantized_weights": false, "zero_hpz_partition_size": 1}})");
  EXPECT_THAT(none.unsupported, IsEmpty());
  EXPECT_EQ(none.recipe.offload_state, "none");
  const ImportedRecipe all = imported(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.5},
          "offload_param": {"device": "nvme"}, "zero_quantized_gradients": true, "overlap_comm": true},
          "aio": {"block_size": 262144}})");
  EXPECT_EQ(all.recipe.offload_state, "host");
  EXPECT_EQ(all.recipe.offload_parameters, "none");
  EXPECT_THAT(not_imported(all),
              ElementsAre("zero_optimization.offload_optimizer.ratio", "zero_optimization.offload_param.device",
                          "zero_optimization.zero_quantized_gradients"));
  EXPECT_THAT(report_on(all, "zero_optimization.offload_param.device"), HasSubstr("nvme_path has no value"));
}

TEST(DeepSpeedConfig, OffloadingToADiskUsesOneFolder) {
  const ImportedRecipe disk = imported(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/fast"},
          "offload_param": {"device": "nvme", "nvme_path": "/fast", "buffer_count": 5}}})");
  EXPECT_THAT(disk.unsupported, IsEmpty());
  EXPECT_EQ(disk.recipe.offload_state, "file");
  EXPECT_EQ(disk.recipe.offload_parameters, "file");
  EXPECT_EQ(disk.recipe.offload_shard_folder, "/fast");
  EXPECT_EQ(Recipe::parse(disk.to_yaml()), disk.recipe);
  const ImportedRecipe two = imported(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"},
          "offload_param": {"device": "nvme", "nvme_path": "/b"}}})");
  EXPECT_EQ(two.recipe.offload_shard_folder, "/a");
  EXPECT_THAT(not_imported(two), ElementsAre("zero_optimization.offload_param.nvme_path"));
  const ImportedRecipe old = imported(R"({"zero_optimization": {"stage": 2, "cpu_offload": true,
                                         "cpu_offload_params": true}})");
  EXPECT_EQ(old.recipe.offload_state, "host");
  EXPECT_THAT(report_on(old, "zero_optimization.cpu_offload_params"),
              HasSubstr("does not work with data_parallel zero2"));
  EXPECT_THAT(import_error(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}})"),
              HasSubstr("zero_optimization.offload_param.device: expected none, cpu or nvme, found \"gpu\"."));
}

TEST(DeepSpeedConfig, ActivationCheckpointingRecomputesBlocks) {
  const auto with = [](const std::string& settings) {
    return imported(R"({"activation_checkpointing": {)" + settings + "}}");
  };
  EXPECT_EQ(with(R"("partition_activations": false, "number_checkpoints": null)").recipe, Recipe{});
  const ImportedRecipe offloaded = with(R"("cpu_checkpointing": true)");
  EXPECT_EQ(offloaded.recipe.recompute, "blocks");
  EXPECT_THAT(report_on(offloaded, "activation_checkpointing.cpu_checkpointing"), HasSubstr("Set offload_folder"));
  EXPECT_EQ(with(R"("number_checkpoints": 4)").recipe.recompute, "blocks");
  EXPECT_THAT(not_imported(with(R"("partition_activations": true)")),
              ElementsAre("activation_checkpointing.partition_activations"));
}

TEST(DeepSpeedConfig, LogsOfFilesAreImported) {
  const ImportedRecipe board =
      imported(R"({"tensorboard": {"enabled": true, "output_path": "logs/"}, "steps_per_print": 1e2})");
  EXPECT_EQ(board.recipe.log, "tensorboard");
  EXPECT_EQ(board.recipe.logging_steps, 100);
  EXPECT_THAT(not_imported(board), ElementsAre("tensorboard.output_path"));
  EXPECT_EQ(imported(R"({"tensorboard": {"enabled": true}, "csv_monitor": {"enabled": true}})").recipe.log,
            "csv, tensorboard");
  EXPECT_EQ(imported(R"({"csv_monitor": {"enabled": true}})").recipe, Recipe{});
  EXPECT_THAT(imported(R"({"tensorboard": {"enabled": false, "output_path": "logs/"}})").unsupported, IsEmpty());
  EXPECT_THAT(not_imported(imported(R"({"wandb": {"enabled": true}, "comet": {"enabled": false},
                                        "wall_clock_breakdown": true, "flops_profiler": {"enabled": true}})")),
              ElementsAre("flops_profiler", "wall_clock_breakdown", "wandb"));
}

TEST(DeepSpeedConfig, FeaturesAreReportedIfTheyAreOn) {
  EXPECT_THAT(imported(R"({"autotuning": {"enabled": false, "fast": true}, "elasticity": {}, "sparse_attention": {},
                           "compression_training": {"layer_reduction": {"enabled": false}}, "curriculum_learning": null})")
                  .unsupported,
              IsEmpty());
  EXPECT_THAT(
      not_imported(imported(
          R"({"autotuning": {"enabled": true}, "elasticity": {"enabled": true}, "sparse_attention": {"mode": "fixed"},
              "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}},
              "data_efficiency": {"enabled": true}, "pipeline": {"stages": 4}})")),
      ElementsAre("autotuning", "compression_training", "data_efficiency", "elasticity", "pipeline",
                  "sparse_attention"));
}

TEST(DeepSpeedConfig, UnknownKeysAreReported) {
  const ImportedRecipe result = imported(
      R"({"zero_optimisation": {"stage": 2}, "zero_optimization.stage": 2, "fp16": {"enable": true}, "\u001b[31m": 1})");
  EXPECT_EQ(result.recipe, Recipe{});
  EXPECT_THAT(not_imported(result),
              ElementsAre("\\u001b[31m", "fp16.enable", "zero_optimisation", "zero_optimization.stage"));
  EXPECT_THAT(report_on(result, "zero_optimisation"), HasSubstr("Did you mean \"zero_optimization\"?"));
  EXPECT_THAT(report_on(result, "fp16.enable"), HasSubstr("Did you mean \"fp16.enabled\"?"));
}

TEST(DeepSpeedConfig, WrongTypesNameKeyExpectationAndFile) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"train_batch_size": "64"})", "train_batch_size: expected an integer, found \"64\"."},
      {R"({"train_batch_size": 1.5})", "train_batch_size: expected an integer, found 1.5."},
      {R"({"train_batch_size": true})", "train_batch_size: expected an integer, found true."},
      {R"({"fp16": true})", "fp16: expected an object, found true."},
      {R"({"fp16": {"enabled": 1}})", "fp16.enabled: expected true or false, found 1."},
      {R"({"optimizer": {"params": {"lr": []}}})", "optimizer.params.lr: expected a number, found []."},
      {R"({"optimizer": {"params": {"betas": 0.9}}})", "optimizer.params.betas: expected a list, found 0.9."},
      {R"({"optimizer": {"type": 3}})", "optimizer.type: expected a text, found 3."},
      {R"({"wandb": "x"})", "wandb: expected an object, found \"x\"."},
      {R"({"gradient_clipping": -1})",
       "gradient_clipping: expected a number of at least 0 that fits into fp32, for the recipe key max_grad_norm, "
       "found -1."},
      {R"({"steps_per_print": 0})", "steps_per_print: expected an integer from 1 to"},
      {R"([1])", "expected a JSON object with the keys of DeepSpeed, found [1]."},
  };
  for (const auto& [json, words] : cases) {
    EXPECT_THAT(import_error(json), AllOf(HasSubstr("import: ds.json: "), HasSubstr(words))) << json;
  }
}

TEST(DeepSpeedConfig, ReadsJsonAsDeepSpeedDoes) {
  EXPECT_EQ(imported("// a comment\n{\"zero_optimization\": /* here */ {\"stage\": 2}}").recipe.data_parallel, "zero2");
  EXPECT_THAT(import_error(R"({"fp16": {"enabled": true}, "fp16": {}})"),
              HasSubstr("ds.json: the key fp16 occurs twice in one object."));
  EXPECT_THAT(imported(R"({"fp16": {"enabled": false}, "bf16": {"enabled": false}})").unsupported, IsEmpty());
  EXPECT_THAT(import_error(R"({"fp16": )"), HasSubstr("ds.json: invalid JSON at byte 9: the file ends there."));
  EXPECT_THAT(import_error("{\"lr\": 1e999}"), HasSubstr("ds.json: expected numbers that fit into a double"));
  EXPECT_THAT(import_error("{\"a\": " + std::string(100000, '[')), HasSubstr("at most 16 levels"));
}

TEST(DeepSpeedConfig, AutoKeepsTheDefaultAndIsReported) {
  const ImportedRecipe result = imported(R"({"gradient_clipping": "auto", "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})");
  EXPECT_EQ(result.recipe.max_grad_norm, 0);
  EXPECT_EQ(result.recipe.batch_size, 4);
  EXPECT_THAT(not_imported(result), ElementsAre("gradient_clipping"));  // the batch size follows from the others
  EXPECT_EQ(
      report_on(result, "gradient_clipping"),
      "\"auto\": The Hugging Face Trainer chooses this value. Set max_grad_norm, or the recipe keeps its default.");
}

TEST(DeepSpeedConfig, HuggingFacesZero3ConfigurationWithAuto) {
  const ImportedRecipe result = imported(R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
             "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW",
                  "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR",
                  "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {
      "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
      "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
      "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
      "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false})",
                                         /*ranks=*/8);
  EXPECT_THAT(result.changed,
              ElementsAre("optimizer", "data_parallel", "offload_parameters", "offload_state", "logging_steps"));
  EXPECT_EQ(result.to_yaml(),
            "optimizer: adamw\ndata_parallel: zero3\noffload_parameters: host\noffload_state: host\n"
            "logging_steps: 2000\n");
  EXPECT_THAT(
      not_imported(result),
      ElementsAre("bf16.enabled", "fp16.enabled", "gradient_accumulation_steps", "gradient_clipping",
                  "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.lr",
                  "optimizer.params.weight_decay", "scheduler.params.warmup_max_lr", "scheduler.params.warmup_min_lr",
                  "scheduler.params.warmup_num_steps", "train_batch_size", "train_micro_batch_size_per_gpu",
                  "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_param_persistence_threshold",
                  "zero_optimization.stage3_prefetch_bucket_size"));
}

TEST(DeepSpeedConfig, AClassicFp16Configuration) {
  const ImportedRecipe result = imported(R"({
    "train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16, "steps_per_print": 100, "prescale_gradients": false,
    "optimizer": {"type": "Adam", "params": {"lr": 2e-4, "weight_decay": 0.01, "bias_correction": false}},
    "gradient_clipping": 1.0, "wall_clock_breakdown": false,
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}})",
                                         /*ranks=*/64);
  EXPECT_THAT(result.changed,
              ElementsAre("batch_size", "optimizer", "lr", "weight_decay", "gradient_accumulation_steps",
                          "max_grad_norm", "precision", "logging_steps"));
  EXPECT_EQ(result.recipe.batch_size, 1024);
  EXPECT_EQ(result.recipe.gradient_accumulation_steps, 4);
  EXPECT_EQ(result.recipe.lr, 2e-4);
  EXPECT_EQ(result.recipe.max_grad_norm, 1);
  EXPECT_EQ(result.recipe.precision, "fp16");
  EXPECT_THAT(not_imported(result), ElementsAre("optimizer.params.bias_correction"));
}

}  // namespace bellows::train
