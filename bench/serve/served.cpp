#include "bench/serve/served.h"

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace bellows::bench {

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "bench-serve-XXXXXX").string();
  TORCH_CHECK(mkdtemp(name.data()), "cannot create a folder in ", std::filesystem::temp_directory_path().string());
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

serve::LoadOptions Served::options(int64_t concurrency, double seconds) const {
  serve::LoadOptions options{.url = url_, .model = model_, .levels = {{.concurrency = concurrency}}};
  options.data_file = data_file_;
  options.warmup_s = 0.1;
  options.window_s = seconds;
  options.max_windows = 1;
  return options;
}

serve::LevelResult Served::load(int64_t concurrency, double seconds) const {
  const serve::LevelResult result = serve::measure_load(options(concurrency, seconds)).levels.at(0);
  TORCH_CHECK(result.failed == 0 && result.requests > 0, name_, ": ", result.failed, " of ",
              result.requests + result.failed, " requests failed. ", result.first_error);
  return result;
}

at::Tensor Served::answer(c10::IntArrayRef sizes) const {
  const std::string body = serve::measure_load(options(1, 0.01)).first_answer;
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * sizeof(float);
  TORCH_CHECK(body.size() > bytes, name_, ": expected an answer of more than ", bytes, " bytes, got ", body.size());
  at::Tensor values = torch::empty(sizes);
  std::copy_n(body.end() - static_cast<std::ptrdiff_t>(bytes), bytes, static_cast<char*>(values.data_ptr()));
  return values;
}

Contestant Served::latency(double seconds, int64_t concurrency) const {
  return {name_, [this, seconds, concurrency](int64_t) { return load(concurrency, seconds).latency.p50_s; }};
}

Contestant Served::throughput(int64_t concurrency, double seconds,
                              std::function<void(const serve::LevelResult&)> seen) const {
  return {name_, [this, seconds, concurrency, seen = std::move(seen)](int64_t) {
            const serve::LevelResult result = load(concurrency, seconds);
            if (seen) seen(result);
            return 1 / result.requests_per_s;
          }};
}

void write_request(const std::string& file, const std::string& input, const at::Tensor& values) {
  const at::Tensor flat = values.reshape(-1);
  std::ofstream out(file);
  out.precision(9);
  out << "{\"data\": [{\"" << input << "\": {\"shape\": [";
  for (int64_t i = 0; i < values.dim(); ++i) out << (i > 0 ? ", " : "") << values.size(i);
  out << "], \"content\": [";
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (i > 0) out << ", ";
    if (values.is_floating_point())
      out << flat[i].item<double>();
    else
      out << flat[i].item<int64_t>();
  }
  out << "]}}]}\n";
  TORCH_CHECK(out.good(), "cannot write ", file);
}

}  // namespace bellows::bench
