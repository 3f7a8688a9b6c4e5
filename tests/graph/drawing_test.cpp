#include "bellows/graph/program/drawing.h"

#include <fstream>
#include <regex>

#include "bellows/models/resnet.h"
#include "tests/graph/kept_programs.h"
#include "tests/support/text.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

graph::Program residual() {
  const at::Tensor x = torch::ones({2, 3}), w = torch::ones({3, 3});
  static at::Tensor kept;
  return program_of([&] {
    kept = at::mm(x, w).clamp(-1, 1) + x;
    x.mul_(0.5);
  });
}

TEST(DrawnProgram, DotHasANodeAnInstructionAndAnEdgeAnOperand) {
  const std::string dot = to_dot(residual());
  EXPECT_THAT(dot, ::testing::StartsWith("digraph program {"));
  EXPECT_THAT(dot, HasSubstr("n2 [label=\"mm\\l\""));
  EXPECT_THAT(dot, HasSubstr("label=\"clamp\\l-1, 1\\l\""));
  EXPECT_THAT(dot, HasSubstr("n0 -> n2 [label=\"f32[2, 3]\"]"));
  EXPECT_EQ(count_of(dot, " -> "), 8u) << dot;  // mm 2, clamp 1, add 2, mul 1, outputs 2
  EXPECT_EQ(count_of(dot, "color=red"), 1u);
  EXPECT_EQ(count_of(dot, "{"), count_of(dot, "}"));
}

struct Box {
  double x, y, width, height;
};

std::vector<Box> boxes(const std::string& html) {
  static const std::regex rect(R"re(<rect x="([-0-9.e]+)" y="([-0-9.e]+)" width="([-0-9.e]+)" height="([-0-9.e]+)")re");
  std::vector<Box> result;
  for (std::sregex_iterator it(html.begin(), html.end(), rect), end; it != end; ++it)
    result.push_back({std::stod((*it)[1]), std::stod((*it)[2]), std::stod((*it)[3]), std::stod((*it)[4])});
  return result;
}

TEST(DrawnProgram, ManyInputsOfOneInstructionAreOneBoxAndSoAreItsOutputs) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 30; ++i) tensors.push_back(torch::ones({i + 1}));
  const graph::Program program = program_of([&] { at::_foreach_mul_(tensors, 0.5); });
  const std::string html = to_html(program, "update");
  EXPECT_EQ(boxes(html).size(), 3u);
  EXPECT_THAT(html, HasSubstr(">30 inputs</text>"));
  EXPECT_THAT(html, HasSubstr(">23: f32[24]</text>"));
  EXPECT_THAT(html, HasSubstr(">and 6 more</text>"));
  EXPECT_THAT(html, HasSubstr(">30 outputs</text>"));
  EXPECT_THAT(html, HasSubstr(">to input 0</text>"));
  EXPECT_EQ(count_of(to_dot(program), " -> "), 2u);
}

TEST(DrawnProgram, BoxesOfALargeProgramDoNotOverlapAndStayOnThePage) {
  const Model model = models::resnet18({.num_classes = 10});
  model.module()->eval();
  const at::Tensor x = torch::randn({1, 3, 32, 32});
  at::Tensor kept;
  const graph::Program program = program_of([&] {
    const at::NoGradGuard no_grad;
    kept = model.forward(x);
  });
  EXPECT_GT(program.instructions.size(), 60u);
  const std::string html = to_html(program, "ResNet-18 <eval>");
  EXPECT_THAT(html, HasSubstr("<title>ResNet-18 &lt;eval&gt;</title>"));
  const auto all = boxes(html);
  EXPECT_EQ(count_of(html, "<g class=\"one\"") + count_of(html, "<g class=\"group\""), program.instructions.size());
  EXPECT_EQ(count_of(html, ">4 inputs</text>"), 20u) << "of each batch norm";
  std::smatch size;
  ASSERT_TRUE(std::regex_search(html, size, std::regex(R"re(<svg [^>]*width="([-0-9.e+]+)" height="([-0-9.e+]+)")re")));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_GE(all[i].x, 0);
    EXPECT_LE(all[i].x + all[i].width, std::stod(size[1]));
    EXPECT_LE(all[i].y + all[i].height, std::stod(size[2]));
    for (size_t j = 0; j < i; ++j) {
      const bool apart = all[i].x + all[i].width <= all[j].x + 0.1 || all[j].x + all[j].width <= all[i].x + 0.1 ||
                         all[i].y + all[i].height <= all[j].y || all[j].y + all[j].height <= all[i].y;
      EXPECT_TRUE(apart) << i << " and " << j;
    }
  }
  if (const char* folder = std::getenv("BELLOWS_KEEP_DRAWINGS"))
    std::ofstream(std::string(folder) + "/resnet18.html") << html;
}

}  // namespace
}  // namespace bellows::graph::testing
