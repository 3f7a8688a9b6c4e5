#include "tests/serve/test_models.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "bellows/serve/tensor_types.h"
#include "bellows/system/file.h"

namespace bellows::serve {

namespace {

using runtime::TensorInfo;

std::mutex sizes_mutex;
std::vector<int64_t> batch_sizes;

class TestModel final : public runtime::InferenceModel {
 public:
  explicit TestModel(const std::string& text) {
    std::istringstream words(text);
    words >> kind_;
    const std::vector<int64_t> four{-1, 4}, two{-1, 2};
    if (kind_ == "scale") words >> factor_;
    if (kind_ == "sum") {
      inputs_ = {{"a", c10::kLong, two}, {"b", c10::kLong, two}};
      outputs_ = {{"total", c10::kLong, two}};
    } else if (kind_ == "tokens" || kind_ == "masked") {
      inputs_ = {{"input_ids", c10::kLong, {-1, -1}}};
      if (kind_ == "masked") inputs_.push_back({"attention_mask", c10::kLong, {-1, -1}});
      outputs_ = {{"y", c10::kFloat, two}};
    } else if (kind_ == "rows") {
      inputs_ = {{"x", c10::kFloat, {-1, -1}}};
      outputs_ = {{"y", c10::kFloat, {-1, -1}}, {"total", c10::kFloat, {-1, 1}}};
    } else if (kind_ == "accumulate") {
      const std::vector<int64_t> one{-1, 1};
      inputs_ = {{"x", c10::kFloat, one},   {"START", c10::kFloat, one}, {"READY", c10::kFloat, one},
                 {"END", c10::kFloat, one}, {"CORRID", c10::kLong, one}, {"sum_in", c10::kFloat, one}};
      outputs_ = {{"y", c10::kFloat, {-1, 5}}, {"sum_out", c10::kFloat, one}};
    } else if (kind_ == "types") {
      std::string name;
      words >> name;
      const auto dtype = type_named(name);
      TORCH_CHECK_VALUE(dtype, "no dtype ", name);
      inputs_ = {{"x", *dtype, {-1, -1}}};
      outputs_ = {{"y", *dtype, {-1, -1}}};
    } else {
      TORCH_CHECK_VALUE(
          kind_ == "identity" || kind_ == "scale" || kind_ == "gated" || kind_ == "strict" || kind_ == "shrink",
          "damaged model file: ", text);
      inputs_ = {{"x", c10::kFloat, four}};
      outputs_ = {{"y", c10::kFloat, four}};
    }
  }

  const std::vector<TensorInfo>& inputs() const override { return inputs_; }
  const std::vector<TensorInfo>& outputs() const override { return outputs_; }

  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs) override {
    {
      const std::lock_guard lock(sizes_mutex);
      batch_sizes.push_back(inputs[0].size(0));
    }
    if (kind_ == "gated") gate().wait();
    if (kind_ == "tokens" || kind_ == "masked") {
      const at::Tensor ids = kind_ == "masked" ? at::mul(inputs[0], inputs[1]) : inputs[0];
      const at::Tensor used = kind_ == "masked" ? inputs[1] : ids.ne(0);
      return {at::stack({ids.sum(1), used.sum(1)}, 1).to(c10::kFloat)};
    }
    if (kind_ == "rows") return {at::mul(inputs[0], 2), inputs[0].sum(1, true)};
    if (kind_ == "accumulate") {
      if (inputs[0].eq(-1).any().item<bool>()) throw std::runtime_error("the value is -1");
      const at::Tensor sum = at::add(inputs[5], inputs[0]);
      return {at::cat({sum, inputs[1], inputs[2], inputs[3], inputs[4].to(c10::kFloat)}, 1), sum};
    }
    if (kind_ == "sum") return {at::add(inputs[0], inputs[1])};
    if (kind_ == "scale") return {at::mul(inputs[0], factor_)};
    if (kind_ == "shrink") return {inputs[0].narrow(0, 0, inputs[0].size(0) - 1)};
    if (kind_ == "strict") {
      const auto* x = static_cast<const float*>(inputs[0].const_data_ptr());
      for (int64_t i = 0; i < inputs[0].numel(); ++i)
        if (x[i] < 0) throw std::runtime_error("negative value");
    }
    return {inputs[0]};
  }

 private:
  std::string kind_{};
  double factor_ = 1;
  std::vector<TensorInfo> inputs_{}, outputs_{};
};

}  // namespace

TestFolder::TestFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "bellows-serve-XXXXXX").string();
  TORCH_CHECK(mkdtemp(name.data()), "no temporary folder");
  path_ = name;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TestFolder::write(const std::string& name, std::string_view content) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  write_text_file(file.string(), content);
}

void Gate::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  arrivals_ = 0;
}

void Gate::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void Gate::wait() {
  std::unique_lock lock(mutex_);
  ++arrivals_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return open_; });
}

void Gate::wait_for_arrivals(int count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return arrivals_ >= count; });
}

Gate& gate() {
  static Gate one;
  return one;
}

ModelLoader test_loader() {
  return [](const std::string&, const std::string& path, const runtime::LoadOptions&) {
    return LoadedFile{std::make_unique<TestModel>(read_text_file(path)), "test"};
  };
}

void write_test_models(const TestFolder& folder) {
  folder.write("identity/1/model.test", "identity");
  folder.write("sum/config.pbtxt", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500 }");
  folder.write("sum/1/model.test", "sum");
  folder.write("gated/config.pbtxt",
               "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 2 } }");
  folder.write("gated/1/model.test", "gated");
}

std::vector<int64_t> take_batch_sizes() {
  const std::lock_guard lock(sizes_mutex);
  return std::exchange(batch_sizes, {});
}

}  // namespace bellows::serve
