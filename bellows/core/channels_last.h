#pragma once

#include <cstdint>

namespace bellows {

class Model;

/// Converts the weights of the model's 2-d convolutions to channels-last layout, in place. All other tensors stay
/// unchanged, because only convolutions use this layout for their weights. Also pass channels-last inputs to the model:
/// `x.contiguous(ChannelsLast)`.
/// Numerics: weights are bit-identical; convolution kernels may sum in a different order (docs/numerics.md)
/// Cost:     one copy of each converted weight
/// Returns:  number of converted weights. Weights that are equal in both layouts, such as 1×1 kernels on 1 channel, are
///           not counted
/// Ref:      torch.nn.utils.convert_conv2d_weight_memory_format
int64_t to_channels_last(const Model& model);

}  // namespace bellows
