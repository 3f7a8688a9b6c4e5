#pragma once

#include "tests/graph/random_layers.h"

#include <rapidcheck/gtest.h>  // behind gtest

/// Programs that nobody wrote: RapidCheck picks their instructions.
namespace bellows::graph::testing {

/// Programs as lists of numbers, so that RapidCheck can make them smaller: each instruction picks an operator and the tensors that it
/// works on, out of those that are there.
struct Instruction {
  uint16_t op = 0, a = 0, b = 0, detail = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Instruction& one) {
  return out << "{" << one.op << ", " << one.a << ", " << one.b << ", " << one.detail << "}";
}

inline rc::Gen<Instruction> instruction() {
  const auto number = rc::gen::inRange<uint16_t>(0, 1000);
  return rc::gen::build<Instruction>(rc::gen::set(&Instruction::op, number), rc::gen::set(&Instruction::a, number),
                                     rc::gen::set(&Instruction::b, number), rc::gen::set(&Instruction::detail, number));
}

/// What a program works on: inputs (a view of another one, one that does not own its elements alone, empty, 0-d, an image, a
/// parameter), the weights of layers, and what the instructions so far made.
class Machine {
 public:
  /// Params: looks_at_data – whether it branches on the sign of a sum, which rounding may change
  Machine(const Tensors& inputs, Layers& layers, bool looks_at_data)
      : values_(inputs), layers_(layers), looks_at_data_(looks_at_data) {}

  void run(const Instruction& one, int call) {
    const at::Tensor a = pick(one.a), b = pick(one.b);
    switch (one.op % 9) {
      case 0:
        return keep(pointwise(one.detail, a, b, call));
      case 1:
        return keep(view(one.detail, a));
      case 2:
        return in_place(one.detail, a, b, call);
      case 3:
        return keep(reduced(one.detail, a, b));
      case 4:
        return control(one, a, b, call);
      case 5:
        return keep(made(one.detail, a, call));
      case 6:
        return train(one);
      default:
        return keep(layers_.run(one.detail, image(one.a)));
    }
  }
  const Tensors& values() const { return values_; }

 private:
  at::Tensor pick(uint16_t which) const { return values_[which % values_.size()]; }
  at::Tensor image(uint16_t which) const {
    Tensors images;
    std::copy_if(values_.begin(), values_.end(), std::back_inserter(images), Layers::takes);
    return images[which % images.size()];
  }
  void keep(const at::Tensor& value) {
    if (value.defined() && value.numel() <= 4096) values_.push_back(value);
  }
  static bool broadcast(const at::Tensor& a, const at::Tensor& b) {
    for (int64_t i = 1; i <= std::min(a.dim(), b.dim()); ++i) {
      if (a.size(-i) != b.size(-i) && a.size(-i) != 1 && b.size(-i) != 1) return false;
    }
    return true;
  }
  static bool same_storage(const at::Tensor& a, const at::Tensor& b) {
    return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
  }
  /// Written in place only where libtorch lets it: not expanded, not a leaf that wants a gradient, not a view of one.
  static bool writable(const at::Tensor& a) {
    return a.is_non_overlapping_and_dense() && !a.requires_grad() && a.is_floating_point();
  }

  static at::Tensor pointwise(int which, const at::Tensor& a, const at::Tensor& b, int call) {
    if (!broadcast(a, b)) return a * (1.5 + call);
    switch (which % 10) {
      case 0:
        return a + b;
      case 1:
        return a.sub(b, 0.5 * call);
      case 2:
        return a * b;
      case 3:
        return a.tanh() / (b.abs() + 1);
      case 4:
        return at::where(a > b, a, b);
      case 5:
        return at::maximum(a, b).relu();
      case 6:
        return at::lerp(a, b.expand_as(a + b), 0.25);
      case 7:
        return at::gelu(a) - b.sigmoid();
      case 8:
        return a.clamp(-0.5 - call % 3, 0.5).exp();
      default:
        return at::addcmul(a, a, b, 0.1 * (call + 1));
    }
  }

  static at::Tensor view(int which, const at::Tensor& a) {
    const int64_t dim = a.dim() ? which / 10 % a.dim() : 0;
    switch (which % 8) {
      case 0:
        return a.unsqueeze(dim);
      case 1:
        return a.dim() ? a.transpose(0, dim) : a;
      case 2:
        return a.dim() && a.size(dim) > 1 ? a.narrow(dim, 1, a.size(dim) - 1) : a;
      case 3:
        return a.dim() && a.size(dim) ? a.select(dim, which % a.size(dim)) : a.detach();
      case 4:
        return a.flatten();
      case 5:
        return a.squeeze();
      case 6:
        return a.dim() < 3 ? a.unsqueeze(0).expand(expanded(a)) : a;
      default:
        return a.dim() && a.size(dim) > 1 ? a.slice(dim, 0, a.size(dim), 2) : a.detach();
    }
  }
  static std::vector<int64_t> expanded(const at::Tensor& a) {
    std::vector<int64_t> sizes{2};
    sizes.insert(sizes.end(), a.sizes().begin(), a.sizes().end());
    return sizes;
  }

  void in_place(int which, const at::Tensor& a, const at::Tensor& b, int call) {
    const bool fits = broadcast(a, b) && at::infer_size(a.sizes(), b.sizes()) == a.sizes().vec();
    if (!writable(a)) return keep(a.clone());
    const at::NoGradGuard no_grad;
    switch (which % 6) {
      case 0:
        a.mul_(0.5);
        break;
      case 1:
        if (fits && !same_storage(a, b)) a.add_(b, 0.1 * call);
        break;
      case 2:
        a.clamp_(-2, 2);
        break;
      case 3:
        if (fits && !same_storage(a, b)) a.copy_(b);
        break;
      case 4:
        a.bernoulli_(0.5);
        break;
      default:
        a.tanh_();
    }
  }

  static at::Tensor reduced(int which, const at::Tensor& a, const at::Tensor& b) {
    const int64_t dim = a.dim() ? which / 10 % a.dim() : 0;
    switch (which % 7) {
      case 0:
        return a.sum();
      case 1:
        return a.dim() ? a.mean(dim, true) : a;
      case 2:
        return a.dim() && a.size(dim) ? at::softmax(a, dim) : a;
      case 3:
        return a.dim() && a.size(dim) ? std::get<0>(a.max(dim)) : a;
      case 4:
        return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) ? at::mm(a, b) : a.neg();
      case 5:
        return a.dim() ? at::cat({a, a}, dim) : at::stack({a, a});
      default:
        return a.dim() == 2 && a.size(1) ? at::layer_norm(a, {a.size(1)}) : a.pow(2);
    }
  }

  /// Gradients, values on the host, and branches that depend on the call and on data.
  void control(const Instruction& one, const at::Tensor& a, const at::Tensor& b, int call) {
    switch (one.detail % 6) {
      case 0:
        if (a.requires_grad() && a.numel()) {
          const at::Tensor w = one.b % 2 ? values_[0] : layers_.weights()[one.b / 2 % 3];
          const auto grads = torch::autograd::grad({(a * a).sum()}, {w}, {}, true, false, true);
          keep(grads[0].defined() ? grads[0] : at::zeros_like(w));
        }
        return;
      case 1:
        return keep(looks_at_data_ && a.numel() && a.detach().sum().item<double>() > 0 ? a + 1 : a - 1);
      case 2:
        return keep(call % 2 ? a.sin() : a.cos().neg());
      case 3: {
        const c10::InferenceMode inference(call % 3 == 1);
        return keep((a.detach() * 2).clone().mul(call).detach());
      }
      case 4:
        return keep(call % 3 ? a.detach() : at::cat({a.flatten(), b.flatten()}));
      default:
        return keep(at::dropout(a, 0.3, true));
    }
  }

  /// What was made before has no gradients any more, as its weights are no longer what it was made with.
  void train(const Instruction& one) {
    const at::Tensor a = image(one.a), loss = layers_.run(one.b, layers_.run(one.detail, a)).tanh().pow(2).mean();
    if (!loss.requires_grad()) return;
    layers_.step(one.detail, loss);
    keep(loss);
    for (at::Tensor& value : values_) {
      if (!value.is_leaf()) value = value.detach();
    }
  }

  static at::Tensor made(int which, const at::Tensor& a, int call) {
    switch (which % 6) {
      case 0:
        return at::full({2, 3}, call);
      case 1:
        return at::rand_like(a.detach());
      case 2:
        return at::zeros_like(a.detach()).add_(call);
      case 3:
        return torch::tensor({1.0f, static_cast<float>(call)});
      case 4:
        return a.detach().clone();
      default:
        return at::arange(3).to(at::kFloat);
    }
  }

  Tensors values_;
  Layers& layers_;
  bool looks_at_data_;
};

/// Inputs with larger sizes for a larger `size`.
inline Tensors random_inputs(int64_t size) {
  const int64_t rows = 3 + 2 * size;
  const at::Tensor base = torch::randn({rows, 4});
  return {torch::randn({rows, 4}).requires_grad_(),
          base,
          base.slice(0, 1, rows),
          torch::randn({4}).expand({rows, 4}),
          torch::randn({0, 4}),
          torch::randn({}),
          torch::randn({4, rows}).t(),
          torch::randn({2 + size, 4, 6 + size, 6 + 2 * size})};
}

/// Inference tensors may not enter later gradients: what a program may not do in eager mode ends it there in both.
/// Params: sizes – how many sizes the inputs have, in turn
inline Program random_program(const std::vector<Instruction>& instructions, bool looks_at_data = true, int sizes = 1) {
  std::vector<Tensors> inputs;
  for (int size = 0; size < sizes; ++size) inputs.push_back(random_inputs(size));
  const auto layers = std::make_shared<Layers>();
  return {[=](int call) -> Tensors {
            Machine machine(inputs[call % sizes], *layers, looks_at_data);
            std::string refused;
            try {
              for (const Instruction& one : instructions) machine.run(one, call / sizes);
            } catch (const c10::Error& error) {
              refused = error.what_without_backtrace();
            }
            Tensors results = machine.values();
            for (const char letter : refused.substr(0, 40))
              results.push_back(at::scalar_tensor(static_cast<int>(letter)));
            return results;
          },
          [=] {
            Tensors all;
            for (const Tensors& each : inputs) all.insert(all.end(), each.begin(), each.end());
            for (const at::Tensor& tensor : layers->state()) all.push_back(tensor);
            return all;
          }};
}

}  // namespace bellows::graph::testing
