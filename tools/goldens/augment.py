"""Writes tests/goldens/data/augment.safetensors: what torchvision and Pillow make of small pictures, step by step, and how torchvision
draws its random parts. Run: python tools/goldens/augment.py"""
import os

import numpy as np
import torch
import torchvision
import torchvision.transforms as T
import torchvision.transforms.autoaugment as autoaugment
import torchvision.transforms.functional as F
import torchvision.transforms.v2 as v2
from PIL import Image
from safetensors.torch import save_file

from pictures import OUT, hwc, pil, ramp_and_noise

random = np.random.RandomState(11)


def picture(height, width, channels):
    """One that does not reach black and white."""
    return ramp_and_noise(random, height, width, channels, ramp=(20, 220), noise=(10, 240), ramps=0.6)


def colors():
    """Every hue, saturation and value that 8 bits a channel give, coarsely."""
    levels = np.array([0, 1, 2, 31, 64, 100, 127, 128, 170, 211, 254, 255])
    return np.stack(np.meshgrid(levels, levels, levels), -1).astype(np.uint8).reshape(36, 48, 3)


def adjustments(tensors):
    images = {"rgb": picture(19, 23, 3), "gray": picture(15, 17, 1), "flat": np.full((5, 6, 3), 77, np.uint8), "colors": colors(),
              "thin": picture(2, 9, 3)}
    steps = {"brightness": F.adjust_brightness, "contrast": F.adjust_contrast, "saturation": F.adjust_saturation,
             "sharpness": F.adjust_sharpness}
    for name, image in images.items():
        tensors[f"adjust.{name}"] = torch.from_numpy(image)
        for step, run in steps.items():
            for factor in (0.0, 0.3, 1.0, 1.27, 2.5):
                tensors[f"adjust.{name}.{step}.{factor}"] = hwc(run(pil(image), factor))
        for turn in (-0.5, -0.13, 0.0, 0.07, 0.5):
            tensors[f"adjust.{name}.hue.{turn}"] = hwc(F.adjust_hue(pil(image), turn))
        tensors[f"adjust.{name}.grayscale.0"] = hwc(F.to_grayscale(pil(image), image.shape[2]))


def rand_augment(tensors):
    for channels in (1, 3):
        image = picture(21, 27, channels)
        tensors[f"augment.{channels}"] = torch.from_numpy(image)
        space = T.RandAugment()._augmentation_space(31, (21, 27))
        for index, (name, (magnitudes, signed)) in enumerate(space.items()):
            for magnitude in (0, 9, 17, 30):
                value = float(magnitudes[magnitude]) if magnitudes.ndim > 0 else 0.0
                for sign in (1, -1) if signed else (1,):
                    out = autoaugment._apply_op(pil(image), name, sign * value, T.InterpolationMode.NEAREST, None)
                    tensors[f"augment.{channels}.{index}.{magnitude}.{sign}"] = hwc(out)


def draws(tensors):
    """Area, log of the ratio and place of what torchvision draws: quantiles of many draws; and the parts it falls back to."""
    quantiles = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    cases = [(375, 500, (0.08, 1.0), (3 / 4, 4 / 3)), (300, 200, (0.3, 0.6), (0.5, 2.0)), (100, 400, (0.5, 1.0), (3 / 4, 4 / 3))]
    torch.manual_seed(1)
    for index, (height, width, scale, ratio) in enumerate(cases):
        image = torch.empty(3, height, width)
        rows = []
        for _ in range(20000):
            i, j, h, w = T.RandomResizedCrop.get_params(image, scale, ratio)
            rows.append([h * w / (height * width), np.log(w / h), i / max(1, height - h), j / max(1, width - w)])
        tensors[f"crop.{index}"] = torch.tensor([height, width, *scale, *ratio], dtype=torch.float64)
        tensors[f"crop.{index}.quantiles"] = torch.quantile(torch.tensor(rows, dtype=torch.float64), quantiles, dim=0)
    rows = []
    for height, width in ((10, 1000), (1000, 10), (1, 1000), (37, 333), (333, 37), (7, 7)):
        part = T.RandomResizedCrop.get_params(torch.empty(3, height, width), (1.5, 2.0), (3 / 4, 4 / 3))
        rows.append([height, width, *part])
    tensors["crop.fallback"] = torch.tensor(rows)
    rows = []
    for _ in range(20000):
        i, j, h, w, _v = T.RandomErasing.get_params(torch.zeros(3, 60, 80), (0.02, 0.33), (0.3, 3.3), [0.0])
        rows.append([h * w / 4800, np.log(h / w), i / (60 - h), j / (80 - w)])
    tensors["erase.quantiles"] = torch.quantile(torch.tensor(rows, dtype=torch.float64), quantiles, dim=0)


def mixes(tensors):
    torch.manual_seed(2)
    images, labels = torch.randn(5, 3, 6, 7), torch.tensor([0, 3, 1, 1, 2])
    tensors["mix.images"], tensors["mix.labels"] = images, labels
    for lam in (0.0, 0.3, 0.85):
        mixup = v2.MixUp(num_classes=4)
        params = {"lam": lam, "labels": labels, "batch_size": 5}
        tensors[f"mixup.{lam}.images"] = mixup.transform(images, params)
        tensors[f"mixup.{lam}.labels"] = mixup.transform(labels, params)
    for index, box in enumerate([(1, 2, 5, 4), (0, 0, 7, 6), (3, 3, 3, 3)]):
        cutmix = v2.CutMix(num_classes=4)
        lam = float(1.0 - (box[2] - box[0]) * (box[3] - box[1]) / 42)
        params = {"box": box, "lam_adjusted": lam, "labels": labels, "batch_size": 5}
        tensors[f"cutmix.{index}.box"] = torch.tensor(box)
        tensors[f"cutmix.{index}.images"] = cutmix.transform(images, params)
        tensors[f"cutmix.{index}.labels"] = cutmix.transform(labels, params)


if __name__ == "__main__":
    tensors = {}
    adjustments(tensors)
    rand_augment(tensors)
    draws(tensors)
    mixes(tensors)
    versions = {"pillow": Image.__version__, "torch": torch.__version__, "torchvision": torchvision.__version__}
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, os.path.join(OUT, "augment.safetensors"), versions)
