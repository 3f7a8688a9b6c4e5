"""The U-Net of github.com/milesial/Pytorch-UNet with its parameter names: the reference of bellows::models::unet."""

import torch
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, i, o, between=None):
        super().__init__()
        between = between or o
        self.double_conv = nn.Sequential(
            nn.Conv2d(i, between, 3, padding=1, bias=False), nn.BatchNorm2d(between), nn.ReLU(inplace=True),
            nn.Conv2d(between, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(i, o))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, i, o, bilinear):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True) if bilinear else nn.ConvTranspose2d(i, i // 2, 2, stride=2)
        self.conv = DoubleConv(i, o, i // 2 if bilinear else None)

    def forward(self, x, skip):
        x = self.up(x)
        rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        x = nn.functional.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([skip, x], 1))


class UNet(nn.Module):
    def __init__(self, in_channels=3, classes=2, bilinear=False, channels=64, depth=4):
        super().__init__()
        self.depth = depth
        self.inc = DoubleConv(in_channels, channels)
        widths = [channels * 2**n for n in range(depth + 1)]
        if bilinear:
            widths[-1] //= 2
        for n in range(depth):
            setattr(self, f"down{n + 1}", Down(widths[n], widths[n + 1]))
        for n in range(depth):
            wide, narrow = channels * 2 ** (depth - n), channels * 2 ** (depth - n - 1)
            setattr(self, f"up{n + 1}", Up(wide, narrow // 2 if bilinear and n < depth - 1 else narrow, bilinear))
        self.outc = nn.Module()
        self.outc.conv = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        levels = [self.inc(x)]
        for n in range(self.depth):
            levels.append(getattr(self, f"down{n + 1}")(levels[-1]))
        x = levels.pop()
        for n in range(self.depth):
            x = getattr(self, f"up{n + 1}")(x, levels.pop())
        return self.outc.conv(x)
