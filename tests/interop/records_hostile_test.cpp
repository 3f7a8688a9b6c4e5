#include "bellows/io/records/tfrecord.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/interop/records_support.h"

namespace bellows::data {

namespace {

io::Bytes golden_bytes(const std::string& name) {
  const std::string file = read_text_file(golden(name));
  return {io::as_bytes(file).begin(), io::as_bytes(file).end()};
}

}  // namespace

TEST(RecordsHostile, MutatedTfrecords) {
  std::string small;
  for (const char* record : {"", "\x0a\x00", "\x0a\x07\x0a\x05\x0a\x01z\x12\x00"}) io::append_tfrecord(small, record);
  const io::Bytes file(io::as_bytes(small).begin(), io::as_bytes(small).end());
  fuzz::sample_fuzzing({file, golden_bytes("examples.tfindex"), golden_bytes("examples.tfrecord.zz")}, fuzz::tfrecord);
}

TEST(RecordsHostile, MutatedExamples) {
  std::vector<io::Bytes> seeds;
  for (const nlohmann::json& message : golden_json("messages.json")) {
    const std::string bytes = from_hex(message[0]);
    if (!message[1].is_null()) seeds.emplace_back(io::as_bytes(bytes).begin(), io::as_bytes(bytes).end());
  }
  fuzz::sample_fuzzing(seeds, fuzz::tf_example);
}

TEST(RecordsHostile, MutatedRecordio) {
  fuzz::sample_fuzzing({golden_bytes("magic.rec"), golden_bytes("labels.rec"), golden_bytes("magic.idx")},
                       fuzz::recordio);
}

}  // namespace bellows::data
