#include "bellows/io/records/event_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "bellows/io/crc32.h"
#include "bellows/io/images/image.h"
#include "bellows/io/records/tfrecord.h"
#include "tests/io/support.h"

namespace bellows::io {

using EventFileTest = FolderTest;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Event::Kind;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// What tools/goldens/events.py calls values(n).
at::Tensor cubes(int64_t n) {
  const at::Tensor tensor = at::empty({n}, at::TensorOptions().dtype(c10::kDouble));
  for (int64_t k = 0; k < n; ++k) {
    const auto base = static_cast<double>(k - n / 2);
    tensor.mutable_data_ptr<double>()[k] = base * base * base / 1024;
  }
  return tensor;
}

at::Tensor colours() {
  return at::arange(24, at::TensorOptions().dtype(c10::kFloat)).reshape({3, 2, 4}).div(23);
}

at::Tensor doubles(std::initializer_list<double> values) {
  return at::tensor(values, at::TensorOptions().dtype(c10::kDouble));
}

/// The one event file of a folder, or the latest of several.
std::string newest_file(const std::string& folder) {
  std::string latest;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    latest = std::max(latest, entry.path().string());
  return latest;
}

std::vector<Event> of_kind(const std::vector<Event>& events, Kind kind) {
  std::vector<Event> result;
  std::copy_if(events.begin(), events.end(), std::back_inserter(result),
               [&](const Event& e) { return e.kind == kind; });
  return result;
}

const Event& find_tag(const std::vector<Event>& events, const std::string& tag) {
  const auto found = std::find_if(events.begin(), events.end(), [&](const Event& e) { return e.tag == tag; });
  if (found == events.end()) throw std::runtime_error("no event " + tag);
  return *found;
}

/// One of each kind, as the golden has them.
void write_all(const std::string& folder) {
  EventWriter writer(folder, {.purge_step = 7});
  writer.scalar("train/loss", 0.1, 7);
  writer.scalar("train/loss", infinity, 8);
  writer.histogram("spread", cubes(201), 9);
  writer.histogram("positive", doubles({3, 4, 1000}), 9);
  writer.histogram("equal", at::zeros({5}, at::TensorOptions().dtype(c10::kDouble)), 9);
  writer.image("picture", colours(), 10);
  writer.image("bytes", at::arange(6, at::TensorOptions().dtype(c10::kByte)).reshape({2, 3}).mul(40), 10);
  writer.text("notes", "# naïve *text*", 11);
  writer.scalar("na\xffme", 1, 12);
  writer.scalar("final/accuracy", 0.5, 12);
  writer.hyperparameters({{"lr", 0.1}, {"model", std::string("resnet")}, {"channels_last", true}}, {"final/accuracy"});
  writer.end_session();
}

}  // namespace

TEST(Crc32c, HasTheKnownValues) {
  EXPECT_EQ(crc32c({}), 0U);
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(as_bytes(std::string(32, '\0'))), 0x8a9136aaU);
}

TEST(Tfrecord, GivesBackWhatWasAppended) {
  std::string file;
  const std::string large(70000, 'x');
  for (const std::string& data : {std::string("one"), std::string(), large}) append_tfrecord(file, data);
  TfrecordReader reader(file, "memory");
  EXPECT_EQ(reader.next(), "one");
  EXPECT_EQ(reader.next(), "");
  EXPECT_EQ(reader.next(), large);
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(reader.offset(), file.size());
}

TEST(Tfrecord, SaysWhereItIsDamaged) {
  std::string file;
  append_tfrecord(file, "first");
  const size_t second = file.size();
  append_tfrecord(file, "second");
  for (size_t at = second; at < file.size(); ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    TfrecordReader reader(damaged, "memory");
    EXPECT_EQ(reader.next(), "first");
    EXPECT_THAT(value_error([&] { reader.next(); }), HasSubstr(c10::str("at byte ", second))) << at;
  }
}

TEST_F(EventFileTest, EqualsWhatSummaryWriterWrites) {
  write_all(path("all"));
  const std::vector<Event> ours = read_events(newest_file(path("all")));
  const std::vector<Event> theirs = read_events(golden("events/summary_writer.tfevents"));
  EXPECT_EQ(ours[0].content, theirs[0].content);
  EXPECT_EQ(ours[1].kind, Kind::session_start);
  EXPECT_EQ(ours[1].step, 7);
  for (const Kind kind : {Kind::histogram, Kind::text}) {
    const auto mine = of_kind(ours, kind), golden_events = of_kind(theirs, kind);
    ASSERT_EQ(mine.size(), golden_events.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(mine[i].tag, golden_events[i].tag);
      EXPECT_EQ(mine[i].step, golden_events[i].step);
      EXPECT_EQ(mine[i].content, golden_events[i].content);
      EXPECT_EQ(mine[i].minimum, golden_events[i].minimum);
      EXPECT_EQ(mine[i].maximum, golden_events[i].maximum);
      EXPECT_EQ(mine[i].count, golden_events[i].count);
      EXPECT_DOUBLE_EQ(mine[i].sum, golden_events[i].sum);
      EXPECT_DOUBLE_EQ(mine[i].sum_squares, golden_events[i].sum_squares);
      EXPECT_EQ(mine[i].bucket_limits, golden_events[i].bucket_limits);
      EXPECT_EQ(mine[i].buckets, golden_events[i].buckets);
    }
  }
  for (const char* tag : {"picture", "bytes"}) {
    const at::Tensor mine = decode_image(as_bytes(find_tag(ours, tag).content), ColorMode::keep);
    EXPECT_TRUE(
        mine.equal(decode_image(as_bytes(find_tag(theirs, tag).content), ColorMode::keep).slice(2, 0, mine.size(2))))
        << tag;
  }
}

TEST_F(EventFileTest, ReadsWhatSummaryWriterWrites) {
  const std::vector<Event> events = read_events(golden("events/summary_writer.tfevents"));
  const std::vector<Event> scalars = of_kind(events, Kind::scalar);
  ASSERT_EQ(scalars.size(), 4U);
  EXPECT_EQ(scalars[0].wall_time, 1.5);
  EXPECT_EQ(scalars[0].value, 0.1F);
  EXPECT_EQ(scalars[1].value, infinity);
  EXPECT_EQ(scalars[2].value, 0.25);
  EXPECT_EQ(scalars[3].value, 0.1);
  const Event& session = find_tag(events, "_hparams_/session_start_info");
  EXPECT_THAT(session.parameters, ElementsAre(std::pair<std::string, HyperParameter>("epochs", 10.0),
                                              std::pair<std::string, HyperParameter>("lr", 0.1),
                                              std::pair<std::string, HyperParameter>("model", "resnet")));
  for (const Event& event : read_events(golden("events/other.tfevents"))) {
    EXPECT_TRUE(event.kind == Kind::other || event.kind == Kind::version) << event.tag;
  }
}

TEST_F(EventFileTest, HyperparametersComeBack) {
  write_all(path("all"));
  const std::vector<Event> events = read_events(newest_file(path("all")));
  const Event& session = find_tag(events, "_hparams_/session_start_info");
  EXPECT_THAT(session.parameters, ElementsAre(std::pair<std::string, HyperParameter>("channels_last", true),
                                              std::pair<std::string, HyperParameter>("lr", 0.1),
                                              std::pair<std::string, HyperParameter>("model", "resnet")));
  EXPECT_THAT(find_tag(events, "_hparams_/experiment").content, HasSubstr("final/accuracy"));
  EXPECT_EQ(find_tag(events, "_hparams_/session_end_info").kind, Kind::hyperparameters);
}

TEST_F(EventFileTest, HistogramsLeaveOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  {
    EventWriter writer(path("h"));
    writer.histogram("mixed", doubles({nan, 2, infinity, 3, -infinity}), 1);
    writer.histogram("nothing", doubles({nan, infinity}), 1);
    writer.histogram("empty", at::empty({0}), 1);
    writer.histogram("half", at::full({4}, 1.5, at::TensorOptions().dtype(c10::kBFloat16)), 1);
    writer.histogram("beyond", doubles({1e30, -1e30}), 1);
    writer.histogram("flags", at::tensor({1, 0, 1}).to(c10::kBool), 1);
    EXPECT_THAT(value_error([&] { writer.histogram("bad", at::Tensor(), 1); }), HasSubstr("undefined"));
  }
  const std::vector<Event> events = of_kind(read_events(newest_file(path("h"))), Kind::histogram);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].count, 2);
  EXPECT_EQ(events[0].sum, 5);
  EXPECT_EQ(events[0].maximum, 3);
  EXPECT_EQ(events[1].count, 4);
  EXPECT_THAT(events[1].buckets, ElementsAre(0, 4));
  EXPECT_EQ(events[2].minimum, -1e30);
  EXPECT_TRUE(events[2].buckets.empty());
  EXPECT_EQ(events[3].sum, 2);
}

TEST_F(EventFileTest, RefusesWhatIsNoPicture) {
  EventWriter writer(path("i"));
  for (const auto& sizes : {std::vector<int64_t>{4}, {2, 3, 4}, {1, 3, 4, 4}}) {
    EXPECT_THAT(value_error([&] { writer.image("x", at::zeros(sizes), 0); }), HasSubstr("[C, H, W]"));
  }
  EXPECT_THAT(value_error([&] {
                writer.image("x", at::zeros({3, 4}, at::TensorOptions().dtype(c10::kLong)), 0);
              }),
              HasSubstr("uint8 or floating point"));
  writer.image("clamped", doubles({-1, 0.5, 7}).reshape({1, 3}), 0);
  writer.flush();
  const Event clamped = find_tag(read_events(writer.path()), "clamped");
  const at::Tensor pixels = decode_image(as_bytes(clamped.content), ColorMode::keep);
  EXPECT_TRUE(pixels.flatten().equal(at::tensor({0, 127, 255}).to(c10::kByte)));
}

TEST_F(EventFileTest, AFileThatWasCutGivesItsWholeRecords) {
  write_all(path("all"));
  const std::string file = read_text_file(newest_file(path("all")));
  const size_t all = read_events(file, "memory").size();
  size_t before = 0;
  for (size_t length = 0; length < file.size(); length += length + 200 < file.size() ? 37 : 1) {
    const size_t count = read_events(std::string_view(file).substr(0, length), "memory").size();
    EXPECT_GE(count, before);
    EXPECT_LT(count, all);
    before = count;
  }
  EXPECT_EQ(before, all - 1);
}

TEST_F(EventFileTest, SaysWhatIsNoEventFile) {
  const auto error_of = [&](const std::string& bytes) { return value_error([&] { read_events(bytes, "f"); }); };
  EXPECT_THAT(error_of("step,loss\n1,0.5\n2,0.25\n"), HasSubstr("expected a record at byte 0"));
  std::string records;
  append_tfrecord(records, "\x0a\x03xyz");
  EXPECT_THAT(error_of(records), HasSubstr("not an event file"));
  EXPECT_THAT(value_error([&] { read_events(path("missing")); }), HasSubstr("No such file"));
  EXPECT_TRUE(read_events("", "empty").empty());
}

TEST_F(EventFileTest, AResumedRunShowsNoStepTwice) {
  {
    EventWriter first(path("resumed"));
    for (int64_t step = 1; step <= 20; ++step) first.scalar("loss", static_cast<double>(step), step);
  }
  {
    EventWriter second(path("resumed"), {.purge_step = 13});
    for (int64_t step = 13; step <= 30; ++step) second.scalar("loss", 100 + static_cast<double>(step), step);
  }
  const std::vector<Event> events = read_events(newest_file(path("resumed")));
  EXPECT_EQ(events[1].kind, Kind::session_start);
  EXPECT_EQ(events[1].step, 13);
  EXPECT_EQ(of_kind(events, Kind::scalar).size(), 18U);
}

TEST_F(EventFileTest, AClockThatWentBackDoesNotChangeTheOrderOfFiles) {
  std::filesystem::create_directories(path("clock"));
  const std::string later = path("clock") + "/events.out.tfevents.4000000000.elsewhere.1.0";
  write_text_file(later, "");
  const EventWriter writer(path("clock"));
  EXPECT_GT(writer.path(), later);
  const EventWriter next(path("clock"));
  EXPECT_GT(next.path(), writer.path());
}

TEST_F(EventFileTest, WritesWhenItIsTime) {
  EventWriter patient(path("patient"), {.flush_seconds = 3600}), hasty(path("hasty"), {.flush_seconds = 0});
  patient.scalar("x", 1, 1);
  hasty.scalar("x", 1, 1);
  EXPECT_EQ(std::filesystem::file_size(patient.path()), 0U);
  EXPECT_EQ(read_events(hasty.path()).size(), 2U);
  patient.text("long", std::string(2 << 20, 'x'), 2);
  EXPECT_EQ(read_events(patient.path()).size(), 3U);
  patient.scalar("x", 2, 3);
  patient.flush();
  EXPECT_EQ(read_events(patient.path()).size(), 4U);
}

TEST_F(EventFileTest, ADiskThatIsFullIsSaid) {
  EventWriter writer(path("full"), {.flush_seconds = 3600});
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{100, before.rlim_max};
  writer.scalar("x", 1, 1);
  writer.text("x", std::string(1000, 'x'), 1);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string message;
  try {
    writer.flush();
  } catch (const c10::Error& error) {
    message = user_message(error);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr(writer.path()));
  EXPECT_THAT(message, HasSubstr("File too large"));
  writer.flush();  // the rest follows where it stopped
  EXPECT_EQ(read_events(writer.path()).size(), 3U);
}

}  // namespace bellows::io
