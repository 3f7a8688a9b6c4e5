#pragma once

#include <torch/torch.h>

#include <random>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/system/file.h"

namespace bellows::testing {

/// Size of the last dim.
inline constexpr int64_t width = 8;

/// A program over tensors [batch, length, width]. Each step applies one operator, or a short chain, to earlier results.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : seed_(seed) {
    torch::manual_seed(seed);
    for (at::Tensor& one : matrices_) one = torch::randn({width, width}) / 3;
    for (at::Tensor& one : vectors_) one = torch::rand({width}) + 0.5;
  }

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    std::mt19937 random(seed_);
    std::vector<at::Tensor> values{inputs[0]};
    const auto pick = [&](size_t count) { return random() % count; };
    for (int step = 0; step < 10; ++step) {
      const at::Tensor x = values[pick(values.size())], y = values[pick(values.size())];
      values.push_back(normal(made(pick(24), x, y, matrices_[pick(3)], vectors_[pick(3)])));
    }
    return {values.back(), values[values.size() - 2].mean({1})};
  }

  NamedTensors weights() const {
    NamedTensors result;
    for (size_t i = 0; i < 3; ++i) {
      result.emplace_back("matrix." + std::to_string(i), matrices_[i]);
      result.emplace_back("vector." + std::to_string(i), vectors_[i]);
    }
    return result;
  }

 private:
  static at::Tensor normal(const at::Tensor& x) { return x.clamp(-4, 4); }

  static at::Tensor made(size_t op, const at::Tensor& x, const at::Tensor& y, const at::Tensor& matrix,
                         const at::Tensor& vector) {
    const int64_t batch = x.size(0), length = x.size(1);
    switch (op) {
      case 0:
        return x + y * 0.5;
      case 1:
        return at::linear(x, matrix, vector);
      case 2:
        return at::layer_norm(x, {width}, vector, vector);
      case 3:
        return at::softmax(x, -1) * y;
      case 4:
        return at::gelu(x, y.dim() == 3 ? "none" : "tanh");
      case 5:
        return at::matmul(at::softmax(at::matmul(x, y.transpose(1, 2)), -1), x);
      case 6: {
        const auto heads = [&](const at::Tensor& t) { return t.view({batch, length, 2, width / 2}).transpose(1, 2); };
        return at::scaled_dot_product_attention(heads(x.contiguous()), heads(y.contiguous()), heads(x.contiguous()), {},
                                                0, true)
            .transpose(1, 2)
            .reshape({batch, length, width});
      }
      case 7:
        return at::cat({x.slice(2, 0, 3), y.slice(2, 3)}, 2);
      case 8:
        return x.flip({1}) - y;
      case 9:
        return x.transpose(1, 2).contiguous().view({batch, width, length}).transpose(1, 2);
      case 10:
        return x * x.sigmoid() + y.tanh();
      case 11:
        return at::where(x > y, x, y * 0.1);
      case 12:
        return x - x.mean({1}, true);
      case 13:
        return at::cumsum(x, 1) / static_cast<double>(4);
      case 14:
        return at::stack({x, y}, 0).amax({0});
      case 15:
        return x.index_select(2, at::arange(width - 1, -1, -1));
      case 16:
        return at::conv1d(x.transpose(1, 2), matrix.unsqueeze(2).expand({width, width, 3}).contiguous() / 3, vector, 1,
                          1)
            .transpose(1, 2);
      case 17:
        return (x + at::arange(length).unsqueeze(1) * 0.01).relu();
      case 18:
        return x.masked_fill(y < 0, 0.25);
      case 19:
        return x.view({batch, length, 4, 2}).sum({3}).repeat_interleave(2, 2);
      case 20:
        return at::tril(at::matmul(x, y.transpose(1, 2))).matmul(x) / 4;
      case 21: {
        at::Tensor copy = x.clone();
        copy.slice(2, 2, 5).mul_(0.5);
        copy.add_(y, 0.25);
        return copy;
      }
      case 22:
        return x.select(1, -1).unsqueeze(1) + y * vector;
      default:
        return at::constant_pad_nd(x.slice(1, 0, length - 1), {0, 0, 1, 0}, 0.5);
    }
  }

  unsigned seed_;
  at::Tensor matrices_[3], vectors_[3];
};

/// Writes the inputs and outputs of eager calls with several sizes as STEM.0.safetensors and so on, and their names as
/// STEM.signature.
inline void write_cases(const RandomProgram& program, const std::string& stem) {
  const torch::NoGradGuard no_gradients;
  write_text_file(stem + ".signature", "input\ny mean\n");
  int number = 0;
  for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{1, 3}, {3, 7}, {4, 12}}) {
    const at::Tensor x = torch::randn({batch, length, width});
    const auto results = program({x});
    io::save_safetensors(stem + "." + std::to_string(number++) + ".safetensors",
                         {{"in.input", x}, {"out.y", results[0].contiguous()}, {"out.mean", results[1].contiguous()}});
  }
}

}  // namespace bellows::testing
