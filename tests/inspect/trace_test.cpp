#include "bellows/inspect/trace.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/inspect/module_map.h"
#include "bellows/system/file.h"
#include "fake_device.h"

namespace bellows::inspect {
namespace {

struct Bar {
  std::string name, category;
  double start, end;
};

std::map<int64_t, std::vector<Bar>> bars_by_thread(const nlohmann::json& trace) {
  std::map<int64_t, std::vector<Bar>> rows;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double start = event.at("ts");
    rows[event.at("tid")].push_back({event.at("name"), event.at("cat"), start, start + event.at("dur").get<double>()});
  }
  return rows;
}

const Bar* find_bar(const std::vector<Bar>& bars, const std::string& name) {
  for (const Bar& bar : bars) {
    if (bar.name == name) return &bar;
  }
  return nullptr;
}

bool encloses(const Bar* outer, const Bar* inner) {
  return outer && inner && outer->start <= inner->start && inner->end <= outer->end;
}

void train_step() {
  const TraceScope scope("step");
  const at::Tensor w = at::ones({64, 64}).requires_grad_(), x = at::ones({64, 64});
  at::linear(x, w).relu().sum().backward();
}

TEST(StepTracer, WritesAFileWhoseBarsNest) {
  const std::string path = testing::TempDir() + "/inspect_trace.json";
  StepTracer tracer;
  train_step();
  tracer.write(path);
  const auto trace = nlohmann::json::parse(read_text_file(path));
  std::filesystem::remove(path);
  const auto rows = bars_by_thread(trace);
  ASSERT_EQ(rows.size(), 1u);
  const auto& bars = rows.begin()->second;
  for (const Bar& a : bars) {
    EXPECT_LE(a.start, a.end);
    for (const Bar& b : bars) {
      const bool apart = a.end <= b.start || b.end <= a.start;
      EXPECT_TRUE(apart || encloses(&a, &b) || encloses(&b, &a)) << a.name << " and " << b.name << " overlap";
    }
  }
  EXPECT_TRUE(encloses(find_bar(bars, "step"), find_bar(bars, "aten::linear")));
  EXPECT_TRUE(encloses(find_bar(bars, "aten::linear"), find_bar(bars, "aten::mm")));
  const Bar* node = find_bar(bars, "ReluBackward0");
  EXPECT_TRUE(encloses(node, find_bar(bars, "aten::threshold_backward")));
  ASSERT_TRUE(node);
  EXPECT_EQ(node->category, "backward");
}

TEST(StepTracer, DrawsMemory) {
  StepTracer tracer;
  train_step();
  { const at::Tensor brief = at::empty({1 << 20}); }
  int samples = 0;
  const auto trace = nlohmann::json::parse(tracer.writer().to_json());
  for (const auto& event : trace["traceEvents"]) samples += event["ph"] == "C";
  EXPECT_GE(samples, 3);
}

TEST(StepTracer, MemoryAndShapesAreOptional) {
  StepTracer tracer({.memory = false, .shapes = true});
  at::mm(at::ones({2, 3}), at::ones({3, 5}));
  nlohmann::json sizes;
  const auto trace = nlohmann::json::parse(tracer.writer().to_json());
  for (const auto& event : trace["traceEvents"]) {
    EXPECT_NE(event["ph"], "C");
    if (event["name"] == "aten::mm") sizes = event["args"]["sizes"];
  }
  EXPECT_EQ(sizes, (nlohmann::json{{2, 3}, {3, 5}}));
}

TEST(StepTracer, WorkerThreadsHaveTheirOwnRow) {
  const at::Tensor x = at::ones({4}).requires_grad_(), grad = test::ones_on_fake_device({4});
  StepTracer tracer;
  x.to(test::fake_device).backward(grad);
  const auto rows = bars_by_thread(nlohmann::json::parse(tracer.writer().to_json()));
  EXPECT_EQ(rows.size(), 2u);
  int rows_with_backward = 0;
  for (const auto& [thread, bars] : rows) rows_with_backward += find_bar(bars, "ToCopyBackward0") != nullptr;
  EXPECT_EQ(rows_with_backward, 1);
}

TEST(StepTracer, OperatorThatThrowsLeavesTheTraceInOrder) {
  StepTracer tracer({.shapes = true});
  EXPECT_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})), c10::Error);
  { const ModuleScope scope("layer"); }
  const auto rows = bars_by_thread(nlohmann::json::parse(tracer.writer().to_json()));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NE(find_bar(rows.begin()->second, "aten::mm"), nullptr);
  EXPECT_NE(find_bar(rows.begin()->second, "module:layer"), nullptr);
}

TEST(StepTracer, UnwritablePathIsNamed) {
  StepTracer tracer;
  try {
    tracer.write("/no/such/folder/trace.json");
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/no/such/folder"));
  }
}

}  // namespace
}  // namespace bellows::inspect
