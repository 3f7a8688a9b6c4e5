"""bellows::models::digits_resnet in Python."""

import torch
from torch import nn
from torchvision.models.resnet import BasicBlock


class DigitsResNet(nn.Module):
    def __init__(self, num_classes=10, in_channels=1, width=16, blocks=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        channels = width
        for i in range(3):
            stage = []
            for j in range(blocks):
                out, stride = width << i, 2 if i and not j else 1
                down = None
                if stride != 1 or channels != out:
                    down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
                stage.append(BasicBlock(channels, out, stride, down))
                channels = out
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def digits_resnet(**options):
    return DigitsResNet(**options)
