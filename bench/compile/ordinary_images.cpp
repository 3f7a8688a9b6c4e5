#include "bench/compile/ordinary_training.h"

namespace bellows::bench {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1, int64_t padding = 0, bool bias = true) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(padding).bias(bias));
}

nn::ConvTranspose2d up_conv(int64_t in, int64_t out, int64_t size, int64_t stride, int64_t padding, bool bias = false) {
  return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(in, out, size).stride(stride).padding(padding).bias(bias));
}

std::vector<Batch> digits(int64_t batch) {
  return four_batches([=]() -> Batch {
    return {torch::rand({batch, 1, 28, 28}), torch::randint(0, 10, {batch}, at::kLong)};
  });
}

TrainingRun digit_network(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  nn::Sequential model{conv(1, 10, 5),      nn::MaxPool2d(2), nn::ReLU(),       conv(10, 20, 5),
                       nn::Dropout2d(0.5),  nn::MaxPool2d(2), nn::ReLU(),       nn::Flatten(),
                       nn::Linear(320, 50), nn::ReLU(),       nn::Dropout(0.5), nn::Linear(50, 10)};
  return training_run(model->parameters(), sgd(model->parameters(), 1e-2, 0.5), digits(64), autocast,
                      [model](const Batch& batch) mutable {
                        return F::nll_loss(F::log_softmax(model->forward(batch[0]), 1), batch[1]);
                      });
}

nn::Sequential gan_generator() {
  return nn::Sequential{up_conv(100, 256, 4, 1, 0),
                        nn::BatchNorm2d(256),
                        nn::ReLU(),
                        up_conv(256, 128, 3, 2, 1),
                        nn::BatchNorm2d(128),
                        nn::ReLU(),
                        up_conv(128, 64, 4, 2, 1),
                        nn::BatchNorm2d(64),
                        nn::ReLU(),
                        up_conv(64, 1, 4, 2, 1),
                        nn::Tanh()};
}

nn::Sequential gan_discriminator() {
  const nn::LeakyReLU leaky(nn::LeakyReLUOptions().negative_slope(0.2));
  return nn::Sequential{conv(1, 64, 4, 2, 1, false),
                        leaky,
                        conv(64, 128, 4, 2, 1, false),
                        nn::BatchNorm2d(128),
                        leaky,
                        conv(128, 256, 4, 2, 1, false),
                        nn::BatchNorm2d(256),
                        leaky,
                        conv(256, 1, 3, 1, 0, false),
                        nn::Flatten()};
}

TrainingRun gan(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  constexpr int64_t images = 32;
  auto generator = gan_generator(), discriminator = gan_discriminator();
  const auto options = torch::optim::AdamOptions(2e-4).betas({0.5, 0.999});
  auto generator_adam = std::make_shared<torch::optim::Adam>(generator->parameters(), options);
  auto discriminator_adam = std::make_shared<torch::optim::Adam>(discriminator->parameters(), options);
  auto judge = [discriminator](const at::Tensor& x, double label) mutable {
    const at::Tensor logits = discriminator->forward(x);
    return F::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
  };
  auto step = [=, batches = digits(images), turn = size_t{0}]() mutable {
    const at::Tensor real = batches[turn++ % batches.size()][0] * 2 - 1;
    discriminator_adam->zero_grad();
    at::Tensor fake, judged, loss;
    {
      const PlainAutocast guard(autocast);
      fake = generator->forward(torch::randn({images, 100, 1, 1}));
      judged = judge(real, 0.9) + judge(fake.detach(), 0);
    }
    judged.backward();
    discriminator_adam->step();
    generator_adam->zero_grad();
    {
      const PlainAutocast guard(autocast);
      loss = judge(fake, 1);
    }
    loss.backward();
    generator_adam->step();
    return (judged + loss).detach();
  };
  auto parameters = generator->parameters();
  for (const auto& parameter : discriminator->parameters()) parameters.push_back(parameter);
  return {std::move(step), std::move(parameters)};
}

struct AutoencoderImpl : nn::Module {
  AutoencoderImpl()
      : hidden(register_module("hidden", nn::Linear(784, 400))),
        mean(register_module("mean", nn::Linear(400, 20))),
        log_variance(register_module("log_variance", nn::Linear(400, 20))),
        wide(register_module("wide", nn::Linear(20, 400))),
        pixels(register_module("pixels", nn::Linear(400, 784))) {}

  at::Tensor loss(const at::Tensor& x) {
    const at::Tensor code = torch::relu(hidden(x)), mu = mean(code), log_var = log_variance(code);
    const at::Tensor noise = torch::randn_like(mu, at::kFloat);  // bf16 numbers would be other ones
    const at::Tensor z = mu + noise * torch::exp(0.5 * log_var);
    const at::Tensor logits = pixels(torch::relu(wide(z)));
    const at::Tensor fit = F::binary_cross_entropy_with_logits(
        logits, x, F::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kSum));
    return fit - 0.5 * torch::sum(1 + log_var - mu.pow(2) - log_var.exp());
  }

  nn::Linear hidden, mean, log_variance, wide, pixels;
};
TORCH_MODULE(Autoencoder);

TrainingRun autoencoder(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  Autoencoder model;
  auto batches = four_batches([]() -> Batch { return {torch::rand({128, 784})}; });
  return training_run(model->parameters(), adam(model->parameters()), std::move(batches), autocast,
                      [model](const Batch& batch) mutable { return model->loss(batch[0]); });
}

nn::Sequential two_convs(int64_t in, int64_t out) {
  return nn::Sequential{conv(in, out, 3, 1, 1),  nn::BatchNorm2d(out), nn::ReLU(),
                        conv(out, out, 3, 1, 1), nn::BatchNorm2d(out), nn::ReLU()};
}

struct SegmenterImpl : nn::Module {
  SegmenterImpl()
      : fine(register_module("fine", two_convs(3, 16))),
        middle(register_module("middle", two_convs(16, 32))),
        coarse(register_module("coarse", two_convs(32, 64))),
        up_middle(register_module("up_middle", up_conv(64, 32, 2, 2, 0, true))),
        merged_middle(register_module("merged_middle", two_convs(64, 32))),
        up_fine(register_module("up_fine", up_conv(32, 16, 2, 2, 0, true))),
        merged_fine(register_module("merged_fine", two_convs(32, 16))),
        classes(register_module("classes", conv(16, 2, 1))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = fine->forward(x), b = middle->forward(torch::max_pool2d(a, 2));
    const at::Tensor c = coarse->forward(torch::max_pool2d(b, 2));
    const at::Tensor d = merged_middle->forward(torch::cat({up_middle(c), b}, 1));
    return classes(merged_fine->forward(torch::cat({up_fine(d), a}, 1)));
  }

  nn::Sequential fine, middle, coarse;
  nn::ConvTranspose2d up_middle;
  nn::Sequential merged_middle;
  nn::ConvTranspose2d up_fine;
  nn::Sequential merged_fine;
  nn::Conv2d classes;
};
TORCH_MODULE(Segmenter);

TrainingRun segmentation(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  Segmenter model;
  auto batches = four_batches([]() -> Batch {
    return {torch::rand({4, 3, 96, 96}), torch::randint(0, 2, {4, 96, 96}, at::kLong)};
  });
  return training_run(
      model->parameters(), adam(model->parameters()), std::move(batches), autocast,
      [model](const Batch& batch) mutable { return F::cross_entropy(model->forward(batch[0]), batch[1]); });
}

TrainingRun super_resolution(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  nn::Sequential model{conv(1, 64, 5, 1, 2),  nn::ReLU(), conv(64, 64, 3, 1, 1), nn::ReLU(),
                       conv(64, 32, 3, 1, 1), nn::ReLU(), conv(32, 9, 3, 1, 1),  nn::PixelShuffle(3)};
  auto batches = four_batches([]() -> Batch { return {torch::rand({4, 1, 64, 64}), torch::rand({4, 1, 192, 192})}; });
  return training_run(
      model->parameters(), adam(model->parameters()), std::move(batches), autocast,
      [model](const Batch& batch) mutable { return F::mse_loss(model->forward(batch[0]).to(at::kFloat), batch[1]); });
}

/// Returns a convolution with reflected borders.
nn::Sequential style_conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1) {
  return nn::Sequential{nn::ReflectionPad2d(size / 2), conv(in, out, size, stride)};
}

nn::Sequential styled(nn::Sequential convolution, int64_t channels, bool relu = true) {
  convolution->push_back(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(channels).affine(true)));
  if (relu) convolution->push_back(nn::ReLU());
  return convolution;
}

nn::Sequential joined(std::initializer_list<nn::Sequential> parts) {
  nn::Sequential all;
  for (const nn::Sequential& part : parts) all->extend(*part);
  return all;
}

struct StyleNetworkImpl : nn::Module {
  StyleNetworkImpl() {
    encoder = register_module("encoder", joined({styled(style_conv(3, 32, 9), 32), styled(style_conv(32, 64, 3, 2), 64),
                                                 styled(style_conv(64, 128, 3, 2), 128)}));
    for (int i = 0; i < 3; ++i) {
      residuals->push_back(joined({styled(style_conv(128, 128, 3), 128), styled(style_conv(128, 128, 3), 128, false)}));
    }
    register_module("residuals", residuals);
    middle = register_module("middle", styled(style_conv(128, 64, 3), 64));
    fine = register_module("fine", styled(style_conv(64, 32, 3), 32));
    image = register_module("image", style_conv(32, 3, 9));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto twice = F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest);
    at::Tensor y = encoder->forward(x);
    for (const auto& residual : *residuals) y = y + residual->as<nn::Sequential>()->forward(y);
    y = middle->forward(F::interpolate(y, twice));
    return image->forward(fine->forward(F::interpolate(y, twice)));
  }

  nn::Sequential encoder{nullptr};
  nn::ModuleList residuals;
  nn::Sequential middle{nullptr}, fine{nullptr}, image{nullptr};
};
TORCH_MODULE(StyleNetwork);

at::Tensor gram_matrix(const at::Tensor& x) {
  const at::Tensor flat = x.view({x.size(0), x.size(1), -1});
  return flat.bmm(flat.transpose(1, 2)) / static_cast<double>(flat.size(1) * flat.size(2));
}

TrainingRun style_transfer(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  StyleNetwork model;
  auto batches = four_batches([]() -> Batch { return {torch::rand({2, 3, 96, 96})}; });
  const at::Tensor style = gram_matrix(torch::rand({2, 3, 96, 96}));
  return training_run(model->parameters(), adam(model->parameters()), std::move(batches), autocast,
                      [model, style](const Batch& batch) mutable {
                        const at::Tensor output = model->forward(batch[0]).to(at::kFloat);
                        return F::mse_loss(output, batch[0]) + 10 * F::mse_loss(gram_matrix(output), style);
                      });
}

TrainingRun triplets(uint64_t seed, bool autocast) {
  torch::manual_seed(seed);
  nn::Sequential model{conv(1, 32, 5),   nn::PReLU(),   nn::MaxPool2d(2),      conv(32, 64, 5), nn::PReLU(),
                       nn::MaxPool2d(2), nn::Flatten(), nn::Linear(1024, 256), nn::PReLU(),     nn::Linear(256, 64)};
  auto batches = four_batches([]() -> Batch {
    return {torch::rand({32, 1, 28, 28}), torch::rand({32, 1, 28, 28}), torch::rand({32, 1, 28, 28})};
  });
  return training_run(model->parameters(), adam(model->parameters()), std::move(batches), autocast,
                      [model](const Batch& batch) mutable {
                        const auto embed = [&](size_t i) { return model->forward(batch[i]).to(at::kFloat); };
                        const at::Tensor anchor = embed(0), same = embed(1), other = embed(2);
                        return F::triplet_margin_loss(anchor, same, other);
                      });
}

}  // namespace

std::vector<OrdinaryProgram> image_programs() {
  // A bias before a batch norm or instance norm, or one that cancels in a distance, has no gradient except rounding
  // errors, and the first steps of Adam move it by the sign of its gradient. Programs with such biases have higher
  // tolerances.
  return {{.name = "digits", .about = "convolutional digits, dropout, batch 64, SGD", .make = digit_network},
          {.name = "gan", .about = "DCGAN 28x28, batch 32, two Adam", .make = gan, .tolerance = 5e-3},
          {.name = "vae", .about = "variational autoencoder 784-400-20, batch 128, Adam", .make = autoencoder},
          {.name = "segmentation", .about = "small U-Net, 4x3x96x96, Adam", .make = segmentation, .tolerance = 1e-2},
          {.name = "super-resolution", .about = "ESPCN, 4x64x64 to 192x192, Adam", .make = super_resolution},
          {.name = "style",
           .about = "style transfer network, instance norm, 2x96x96, Adam",
           .make = style_transfer,
           .tolerance = 1e-2},
          {.name = "triplet", .about = "triplet network, 3x32x28x28, Adam", .make = triplets, .tolerance = 5e-3}};
}

}  // namespace bellows::bench
