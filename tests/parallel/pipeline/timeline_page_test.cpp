#include "bellows/parallel/pipeline/timeline_page.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <regex>

#include "bellows/system/file.h"
#include "tests/support/errors.h"
#include "tests/support/html.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text.h"

// script/page_check draws the page in a browser.
namespace bellows::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string body_of(const std::string& page) {
  const size_t begin = page.find("<body>");
  return page.substr(begin, page.find("</html>") - begin);
}

TEST(PipelinePage, ShowsBothTimelines) {
  const PipelineSchedule schedule = one_forward_one_backward(4, 8);
  const PipelineTimeline planned = plan_timeline(schedule, {});
  PipelineTimeline measured = plan_timeline(schedule, {.transfer_s = 0.5});
  for (auto& actions : measured.ranks) {
    for (TimedAction& timed : actions) timed.start_s += 1000;  // measured clocks do not start at 0
  }
  const std::string page = pipeline_page(schedule, planned, measured);
  expect_well_formed(body_of(page));
  EXPECT_THAT(page, HasSubstr("4 stages on 4 ranks, 8 micro-batches"));
  EXPECT_THAT(page, HasSubstr("Planned: bubble share 27.3 %"));  // 3 / 11
  char measured_share[64];
  std::snprintf(measured_share, sizeof measured_share, "Measured: bubble share %.1f %%", 100 * measured.bubble_share());
  EXPECT_THAT(page, HasSubstr(measured_share));
  EXPECT_EQ(count_of(page, "<svg"), 2u);
  EXPECT_EQ(count_of(page, "<title>forward of micro-batch 7 in stage 3"), 2u);
  EXPECT_EQ(count_of(page, "<rect class=\"w0"), 2u * 4 * 8);
  EXPECT_EQ(count_of(page, "<rect class=\"w1"), 2u * 4 * 8);
  EXPECT_THAT(page, HasSubstr("<tr><td>rank 1</td><td>1</td><td>3</td><td>24 s</td>"));
  EXPECT_THAT(page, Not(HasSubstr("from 16 min")));
}

TEST(PipelinePage, PlannedAloneHasOneChart) {
  const PipelineSchedule schedule = interleaved(2, 4, 2);
  const std::string page = pipeline_page(schedule, plan_timeline(schedule, {}));
  expect_well_formed(body_of(page));
  EXPECT_EQ(count_of(page, "<svg"), 1u);
  EXPECT_THAT(page, Not(HasSubstr("easured")));
  EXPECT_THAT(page, HasSubstr("a later stage of the same rank"));
  EXPECT_EQ(count_of(page, "<rect class=\"w0 later\""), 2u * 4);
  EXPECT_THAT(page, HasSubstr("<td>1, 3</td>"));
}

TEST(PipelinePage, DividedBackwardHasItsOwnColors) {
  const PipelineSchedule schedule = zero_bubble_h1(2, 4);
  const std::string page = pipeline_page(schedule, plan_timeline(schedule, {}));
  EXPECT_EQ(count_of(page, "<rect class=\"w1"), 0u);
  EXPECT_EQ(count_of(page, "<rect class=\"w2"), 2u * 4);
  EXPECT_EQ(count_of(page, "<rect class=\"w3"), 2u * 4);
  EXPECT_THAT(page, HasSubstr("backward weight</span>"));
  EXPECT_THAT(page, Not(HasSubstr("later stage")));
}

/// All marks are inside the chart, and those of a rank do not overlap.
TEST(PipelinePage, MarksDoNotOverlap) {
  const PipelineSchedule schedule = gpipe(3, 5);
  const std::string page = pipeline_page(schedule, plan_timeline(schedule, {.transfer_s = 0.3}));
  const std::regex mark("<rect class=\"w[0-9]\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\"");
  double end = 0, row = -1;
  int count = 0;
  for (auto it = std::sregex_iterator(page.begin(), page.end(), mark); it != std::sregex_iterator(); ++it, ++count) {
    const double x = std::stod((*it)[1]), y = std::stod((*it)[2]), width = std::stod((*it)[3]);
    if (y != row) end = 0;
    row = y;
    EXPECT_GE(x, end - 0.1);
    end = x + width;
    EXPECT_LE(end, 1070.1);
  }
  EXPECT_EQ(count, 3 * 5 * 2);
}

TEST(PipelinePage, NeedsNothingElse) {
  const PipelineSchedule schedule = schedule_from_text(
      "schedule <own> & \"mine\"\nmicro_batches 1\nstage_ranks 0 1\nrank 0: F0.0 B0.0\nrank 1: F1.0 B1.0\n");
  const TemporaryFolder folder;
  const std::string path = folder / "page.html";
  write_pipeline_page(schedule, plan_timeline(schedule, {}), {}, path);
  const std::string page = read_text_file(path);
  EXPECT_THAT(page, HasSubstr("&lt;own&gt; &amp; &quot;mine&quot;"));
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "<script"})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
}

TEST(PipelinePage, RefusesOtherTimelines) {
  const PipelineTimeline planned = plan_timeline(gpipe(2, 2), {});
  EXPECT_THAT(message_of([&] { pipeline_page(gpipe(3, 2), planned); }),
              HasSubstr("the planned timeline has 2 ranks, but schedule gpipe has 3"));
  EXPECT_THAT(message_of([&] { pipeline_page(gpipe(2, 2), planned, plan_timeline(gpipe(4, 2), {})); }),
              HasSubstr("the measured timeline has 4 ranks"));
}

}  // namespace
}  // namespace bellows::parallel
