#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/serve/load/load.h"
#include "bench/support/bench.h"

namespace bellows::bench {

/// A folder that is deleted with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_{};
};

/// A model on a server, which receives one request again and again. All servers are measured by the load generator of
/// `bellows perf`.
class Served {
 public:
  /// Params: data_file – the values of the request
  ///         keep      – an object that must exist as long as the server is used, such as its process
  Served(std::string name, std::string url, std::string model, std::string data_file, std::shared_ptr<void> keep = {})
      : name_(std::move(name)),
        url_(std::move(url)),
        model_(std::move(model)),
        data_file_(std::move(data_file)),
        keep_(std::move(keep)) {}

  const std::string& name() const { return name_; }
  /// Measures one window with a number of requests at once. Failed requests are an error.
  serve::LevelResult load(int64_t concurrency, double seconds) const;
  /// Returns the values of the only output, fp32.
  at::Tensor answer(c10::IntArrayRef sizes) const;

  /// A side of compare(): the median latency.
  Contestant latency(double seconds, int64_t concurrency = 1) const;
  /// A side of compare(): the time per request, which is the inverse of the throughput.
  /// Params: seen – receives each result
  Contestant throughput(int64_t concurrency, double seconds,
                        std::function<void(const serve::LevelResult&)> seen = {}) const;

 private:
  serve::LoadOptions options(int64_t concurrency, double seconds) const;

  std::string name_, url_, model_, data_file_;
  std::shared_ptr<void> keep_;
};

/// Writes a file for LoadOptions::data_file with one request.
void write_request(const std::string& file, const std::string& input, const at::Tensor& values);

}  // namespace bellows::bench
