#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "bellows/serve/protocol/shared_memory.h"
#include "bellows/serve/server.h"
#include "bellows/serve/v2_protocol.h"
#include "tests/serve/raw_client.h"
#include "tests/serve/requests.h"
#include "tests/serve/shared_object.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr uint64_t most = 1 << 20;

std::string body(const std::string& input, const std::string& output = "") {
  return R"({"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{)" + input + "}}]" +
         (output.empty() ? "" : R"(,"outputs":[{"name":"y","parameters":{)" + output + "}}]") + "}";
}

}  // namespace

TEST(SharedMemory, CopiesInputsAndOutputs) {
  const SharedObject object(64);
  SharedMemory memory(most);
  memory.add("r", object.key(), 16, 32);
  object.write(16 + 8, std::vector<float>{1.5F, 2.5F});
  const ModelSignature model = one_input();
  const InferRequest request =
      parse_infer_request(body(R"("shared_memory_region":"r","shared_memory_offset":8,"shared_memory_byte_size":8)",
                               R"("shared_memory_region":"r","shared_memory_offset":24,"shared_memory_byte_size":8)"),
                          std::nullopt, model, &memory);
  EXPECT_TRUE(at::equal(request.inputs[0], at::tensor({1.5F, 2.5F})));
  memory.remove("r");  // the request keeps the region
  const std::vector<at::Tensor> outputs{at::tensor({3.F, 4.F})};
  const InferResponse response = format_infer_response(model, "", request.outputs, outputs);
  EXPECT_EQ(object.read(16 + 24, 2), (std::vector<float>{3.F, 4.F}));
  const json output = json::parse(response.body)["outputs"][0];
  EXPECT_EQ(output["parameters"],
            json({{"shared_memory_region", "r"}, {"shared_memory_offset", 24}, {"shared_memory_byte_size", 8}}));
  EXPECT_FALSE(output.contains("data"));
}

TEST(SharedMemory, RejectsInvalidRegions) {
  const SharedObject object(64);
  SharedMemory memory(most);
  for (const char* key : {"", "/", "/a/b", "/../x", "..", "."})
    EXPECT_THAT(error_of(400, [&] { memory.add("r", key, 0, 8); }), HasSubstr("key")) << key;
  EXPECT_THAT(error_of(400, [&] { memory.add("r", std::string("/a\0b", 4), 0, 8); }), HasSubstr("key"));
  EXPECT_THAT(error_of(400, [&] { memory.add("r", "/bellows-none", 0, 8); }), HasSubstr("cannot open"));
  EXPECT_THAT(error_of(400, [&] { memory.add("", object.key(), 0, 8); }), HasSubstr("name"));
  constexpr uint64_t huge = std::numeric_limits<uint64_t>::max();
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 65}, {64, 1}, {65, 8}, {0, huge}, {huge, 8}, {huge - 7, 8}, {8, huge - 7}, {0, 0}, {huge / 2, huge / 2}})
    EXPECT_NE(error_of(400, [&] { memory.add("r", object.key(), offset, bytes); }), "") << offset;
  memory.add("r", object.key(), 0, 64);
  EXPECT_THAT(error_of(409, [&] { memory.add("r", object.key(), 0, 8); }), HasSubstr("already registered"));
  EXPECT_THAT(error_of(404, [&] { memory.regions("none"); }), HasSubstr("none"));
  EXPECT_EQ(memory.regions().size(), 1u);
  memory.remove("none");
  memory.remove_all();
  EXPECT_TRUE(memory.regions().empty());
}

TEST(SharedMemory, RejectsPartsOutsideOfTheRegion) {
  const SharedObject object(64);
  SharedMemory memory(most);
  memory.add("r", object.key(), 0, 32);
  constexpr uint64_t huge = std::numeric_limits<uint64_t>::max();
  EXPECT_TRUE(memory.part("input", "r", 24, 8));
  EXPECT_TRUE(memory.part("input", "r", 32, 0));
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{32, 1}, {33, 0}, {25, 8}, {huge, 1}, {huge, huge}, {0, huge}})
    EXPECT_THAT(error_of(400, [&] { memory.part("input", "r", offset, bytes); }), HasSubstr("do not fit"));
  EXPECT_THAT(error_of(400, [&] { memory.part("input", "q", 0, 1); }), HasSubstr("Register it first"));
  const SharedMemory* none = nullptr;
  const auto parse = [&](const std::string& text, const SharedMemory* from) {
    const ModelSignature model = one_input();
    parse_infer_request(text, std::nullopt, model, from);
  };
  const std::string good = R"("shared_memory_region":"r","shared_memory_byte_size":8)";
  parse(body(good), &memory);
  EXPECT_THAT(error_of(501, [&] { parse(body(good), none); }), HasSubstr("not supported"));
  EXPECT_THAT(error_of(400, [&] { parse(body(R"("shared_memory_region":"r")"), &memory); }),
              HasSubstr("missing \"shared_memory_byte_size\""));
  EXPECT_THAT(error_of(400, [&] { parse(body(R"("shared_memory_region":"r","shared_memory_byte_size":7)"), &memory); }),
              HasSubstr("needs 2 elements"));
  EXPECT_THAT(
      error_of(400, [&] { parse(body(R"("shared_memory_region":"r","shared_memory_byte_size":-8)"), &memory); }),
      HasSubstr("at least 0"));
  EXPECT_THAT(error_of(400, [&] { parse(body(R"("shared_memory_region":7,"shared_memory_byte_size":8)"), &memory); }),
              HasSubstr("a string"));
  EXPECT_THAT(error_of(400, [&] { parse(body(good + R"(,"binary_data_size":8)"), &memory); }),
              HasSubstr("shared memory"));
  EXPECT_THAT(error_of(400, [&] { parse(body(good, good + R"(,"classification":1)"), &memory); }),
              HasSubstr("classification"));
}

TEST(SharedMemory, LimitsTheSizeOfParts) {
  const SharedObject object(64);
  SharedMemory memory(16);
  memory.add("r", object.key(), 0, 64);
  EXPECT_TRUE(memory.part("input", "r", 0, 16));
  EXPECT_THAT(error_of(400, [&] { memory.part("input", "r", 0, 17); }), HasSubstr("limit"));
}

TEST(SharedMemory, SurvivesObjectsThatShrink) {
  const SharedObject object(8192);
  SharedMemory memory(most);
  memory.add("r", object.key(), 0, 8192);
  const RegionPart part = memory.part("input", "r", 4096, 4096);
  object.resize(4100);
  std::vector<char> bytes(4096);
  EXPECT_THAT(error_of(400, [&] { part.region->read(part.offset, bytes.data(), part.bytes); }), HasSubstr("smaller"));
  EXPECT_THAT(error_of(400, [&] { part.region->write(part.offset, bytes.data(), part.bytes); }), HasSubstr("smaller"));
  EXPECT_EQ(object.size(), 4100);  // the server does not make it larger again
}

TEST(SharedMemory, RejectsOutputsThatAreTooLarge) {
  const SharedObject object(64);
  SharedMemory memory(most);
  memory.add("r", object.key(), 0, 64);
  const ModelSignature model = one_input();
  const std::vector<RequestedOutput> wanted{{.index = 0, .shared = memory.part("output", "r", 0, 8)}};
  EXPECT_THAT(error_of(400, [&] { format_infer_response(model, "", wanted, std::vector<at::Tensor>{at::ones({3})}); }),
              HasSubstr("has 12 bytes"));
  format_infer_response(model, "", wanted, std::vector<at::Tensor>{at::ones({1})});
  EXPECT_EQ(object.read(0, 2), (std::vector<float>{1, 0}));
}

TEST(SharedMemory, AnswersOverHttp) {
  TestFolder folder;
  folder.write("identity/1/model.test", "identity");
  ServerOptions options{.repository = folder.path()};
  options.http.port = 0;
  Server server(options, test_loader());
  server.wait_until_loaded();
  const SharedObject object(64);
  object.write(0, std::vector<float>{1, 2, 3, 4});
  const auto ask = [&](const std::string& request) {
    RawClient client(server.port());
    client.send(request);
    return client.receive();
  };
  const std::string url = "/v2/systemsharedmemory", region = url + "/region/my%20region";
  const std::string key = json({{"key", object.key()}, {"offset", 0}, {"byte_size", 32}}).dump();
  EXPECT_EQ(ask(post(region + "/register", key)).status, 200);
  EXPECT_EQ(ask(post(region + "/register", key)).status, 409);
  for (const char* wrong : {"", "[]", "{", R"({"key":1})", R"({"key":"/x"})", R"({"key":"/x","byte_size":-1})"})
    EXPECT_EQ(ask(post(url + "/region/other/register", wrong)).status, 400) << wrong;
  EXPECT_EQ(ask(post(url + "/register", key)).status, 404);
  EXPECT_EQ(ask(post(region + "/status", "")).status, 404);
  const json status = json::parse(ask(get(url + "/status")).body);
  EXPECT_EQ(status, json::parse(ask(get(region + "/status")).body));
  EXPECT_EQ(status[0], json({{"name", "my region"}, {"key", object.key()}, {"offset", 0}, {"byte_size", 32}}));
  const std::string infer =
      R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"shared_memory_region":"my region","shared_memory_byte_size":16}}],)"
      R"("outputs":[{"name":"y","parameters":{"shared_memory_region":"my region","shared_memory_offset":16,"shared_memory_byte_size":16}}]})";
  const RawResponse answer = ask(post("/v2/models/identity/infer", infer));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(object.read(16, 4), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(ask(post(region + "/unregister", "")).status, 200);
  EXPECT_EQ(ask(get(region + "/status")).status, 404);
  EXPECT_EQ(ask(post("/v2/models/identity/infer", infer)).status, 400);
  EXPECT_EQ(ask(post(url + "/unregister", "")).status, 200);
}

TEST(SharedMemory, CanBeForbidden) {
  TestFolder folder;
  folder.write("identity/1/model.test", "identity");
  ServerOptions options{.repository = folder.path(), .shared_memory = false};
  options.http.port = 0;
  Server server(options, test_loader());
  RawClient client(server.port());
  client.send(get("/v2/systemsharedmemory/status"));
  EXPECT_EQ(client.receive().status, 501);
  client.send(get("/v2"));
  EXPECT_THAT(client.receive().body, testing::Not(HasSubstr("shared_memory")));
}

}  // namespace bellows::serve
