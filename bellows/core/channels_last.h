#pragma once

#include <cstdint>

namespace bellows {

class Model;

/// Converts the weights of the model's 2-d convolutions to channels-last layout, in place. Other tensors do not change:
/// only convolutions read 4-d weights in that layout. Pass channels-last inputs to the model, too:
/// `x.contiguous(ChannelsLast)`.
/// Numerics: the weights are bit-identical; convolution kernels may sum in another order (docs/numerics.md)
/// Cost:     one copy of each weight that is converted
/// Returns:  the number of converted weights, without weights for which both layouts are the same (such as 1×1 kernels
///           on 1 channel)
/// Ref:      torch.nn.utils.convert_conv2d_weight_memory_format
int64_t to_channels_last(const Model& model);

}  // namespace bellows
