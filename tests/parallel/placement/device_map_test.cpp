#include <gmock/gmock.h>

#include "bellows/models/gpt.h"
#include "bellows/parallel/placement/device_map.h"
#include "bellows/tap/skip_initialization.h"
#include "tests/support/errors.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kib = 1024;

/// An embedding of 8 KiB, four blocks of 2 KiB, and a head of 1 KiB.
std::vector<WeightSize> small_transformer() {
  std::vector<WeightSize> weights = {{"embedding.weight", 8 * kib}};
  for (int i = 0; i < 4; ++i) {
    weights.push_back({c10::str("layers.", i, ".attention.weight"), kib});
    weights.push_back({c10::str("layers.", i, ".ffn.0.weight"), kib});
  }
  weights.push_back({"head.weight", kib});
  return weights;
}

std::vector<std::string> places_of(const DeviceMap& map) {
  std::vector<std::string> places;
  for (const MappedModule& module : map.modules) places.push_back(module.name + " " + to_string(module.place));
  return places;
}

TEST(DeviceMap, AllOnDeviceIfItFits) {
  const DeviceMap map = infer_device_map(small_transformer(), {.device_bytes = 17 * kib});
  EXPECT_TRUE(map.all_on_device());
  EXPECT_EQ(map.device_bytes, 17 * kib);
  EXPECT_EQ(map.working_bytes, 0);
  EXPECT_EQ(map.modules.size(), 6u) << "blocks stay in one piece, also if they contain numbered modules";
  EXPECT_THAT(map.modules[1].parameters, ElementsAre("layers.0.attention.weight", "layers.0.ffn.0.weight"));
}

TEST(DeviceMap, KeepsTheLargeEmbeddingAndReservesTwoBlocks) {
  const DeviceMap map = infer_device_map(small_transformer(), {.device_bytes = 14 * kib});
  EXPECT_THAT(places_of(map), ElementsAre("embedding device", "layers.0 device", "layers.1 disk", "layers.2 disk",
                                          "layers.3 disk", "head disk"));
  EXPECT_EQ(map.device_bytes, 10 * kib);
  EXPECT_EQ(map.disk_bytes, 7 * kib);
  EXPECT_EQ(map.working_bytes, 4 * kib);
}

TEST(DeviceMap, HostMemoryComesBeforeDisk) {
  const DeviceMap map = infer_device_map(small_transformer(), {.device_bytes = 14 * kib, .host_bytes = 5 * kib});
  EXPECT_THAT(places_of(map), ElementsAre("embedding device", "layers.0 device", "layers.1 host", "layers.2 host",
                                          "layers.3 disk", "head host"));
  EXPECT_THAT(map.to_string(), HasSubstr("layers.1: host"));
}

TEST(DeviceMap, ActivationsNeedTheirPartOfTheBudget) {
  const DeviceMap map = infer_device_map(small_transformer(), {.device_bytes = 20 * kib, .activation_bytes = 6 * kib});
  EXPECT_EQ(map.device_bytes + map.working_bytes, 14 * kib);
}

TEST(DeviceMap, OneModuleAtATimeIsTheMinimum) {
  const DeviceMap map = infer_device_map(small_transformer(), {.device_bytes = 8 * kib});
  EXPECT_EQ(map.device_bytes, 0);
  EXPECT_EQ(map.working_bytes, 8 * kib);
  const std::string message = message_of([] { infer_device_map(small_transformer(), {.device_bytes = 8 * kib - 1}); });
  EXPECT_THAT(message, HasSubstr("must be at least 8192 bytes"));
  EXPECT_THAT(message, HasSubstr("the size of module \"embedding\", got 8191 bytes. Increase the budget."));
  EXPECT_THAT(
      message_of([] { infer_device_map(small_transformer(), {.device_bytes = kib, .keep_together = {"layers"}}); }),
      HasSubstr("Increase the budget, or match smaller modules in `keep_together`."));
}

TEST(DeviceMap, PatternsChooseThePieces) {
  const DeviceMap map =
      infer_device_map(small_transformer(), {.device_bytes = 17 * kib, .keep_together = {"layers", "embedding"}});
  EXPECT_THAT(places_of(map), ElementsAre("embedding device", "layers device", "head device"));
  EXPECT_THAT(message_of([] {
                infer_device_map(small_transformer(), {.device_bytes = 17 * kib, .keep_together = {"layer.*"}});
              }),
              HasSubstr("no module with parameters matches \"layer.*\" in `keep_together`."));
}

TEST(DeviceMap, BudgetsMustNotBeNegative) {
  EXPECT_THAT(message_of([] { infer_device_map(small_transformer(), {.device_bytes = -1}); }),
              HasSubstr("expected a `device_bytes` of at least 0, got -1."));
}

TEST(DeviceMap, ModelsWithoutParametersNeedOnlyTheActivations) {
  EXPECT_TRUE(
      infer_device_map(std::vector<WeightSize>(), {.device_bytes = kib, .activation_bytes = kib}).modules.empty());
  EXPECT_THAT(message_of([] {
                infer_device_map(std::vector<WeightSize>(), {.device_bytes = kib - 1, .activation_bytes = kib});
              }),
              HasSubstr("expected a `device_bytes` of at least 1024 bytes"));
}

TEST(DeviceMap, TiedWeightsCountOnce) {
  const tap::SkipInitialization no_values;
  const Model model = models::gpt({.vocab_size = 5000, .n_positions = 16, .n_embd = 64, .n_layer = 2, .n_head = 2});
  int64_t bytes = 0;
  for (const WeightSize& weight : weight_sizes(model)) bytes += weight.bytes;
  int64_t elements = 0;
  for (const auto& [name, parameter] : model.named_parameters()) elements += parameter.numel();
  EXPECT_LE(bytes, 4 * elements);
  EXPECT_LT(bytes, int64_t{2} * 5000 * 64 * 4) << "the output layer shares the embedding";
  const DeviceMap map = infer_device_map(model, {.device_bytes = bytes});
  EXPECT_TRUE(map.all_on_device());
}

}  // namespace
}  // namespace bellows::parallel::testing
