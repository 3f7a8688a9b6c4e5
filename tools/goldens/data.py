"""Writes tests/goldens/data: what Pillow, torchvision and webdataset make of small inputs. Run: python tools/goldens/data.py"""
import io
import json
import os

import numpy as np
import torch
import torchvision.transforms.functional as F
import webdataset as wds
from PIL import Image
from safetensors.torch import save_file

from pictures import OUT, ROOT, hwc, pil, ramp_and_noise

random = np.random.RandomState(7)


def picture(height, width, channels):
    return ramp_and_noise(random, height, width, channels)


def transforms():
    tensors = {}
    sizes = [((8, 8), (16, 16)), ((37, 53), (8, 8)), ((37, 53), (37, 17)), ((37, 53), (64, 53)), ((1, 9), (5, 4)), ((64, 48), (63, 49)),
             ((120, 90), (7, 11))]
    for channels in (1, 3):
        for (h, w), (oh, ow) in sizes:
            image = picture(h, w, channels)
            name = f"resize.{channels}.{h}x{w}.{oh}x{ow}"
            tensors[name + ".in"] = torch.from_numpy(image)
            # Rows, then columns: the order of Pillow up to 12. Later versions choose the order by its cost (".any_order").
            tensors[name + ".out"] = hwc(pil(image).resize((ow, h), Image.BILINEAR).resize((ow, oh), Image.BILINEAR))
            tensors[name + ".any_order"] = hwc(F.resize(pil(image), [oh, ow], interpolation=F.InterpolationMode.BILINEAR))
    for side in (10, 40):
        image = picture(31, 45, 3)
        tensors[f"shorter.{side}.in"] = torch.from_numpy(image)
        tensors[f"shorter.{side}.out"] = hwc(F.resize(pil(image), side, interpolation=F.InterpolationMode.BILINEAR))
    for h, w in ((10, 11), (9, 6), (12, 15)):
        image = picture(12, 15, 3)
        tensors[f"center.{h}x{w}.in"] = torch.from_numpy(image)
        tensors[f"center.{h}x{w}.out"] = hwc(F.center_crop(pil(image), [h, w]))
    image = picture(5, 7, 3)
    tensors["normalize.in"] = torch.from_numpy(image)
    tensors["normalize.out"] = F.normalize(F.to_tensor(image), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    tensors["flip.in"], tensors["flip.out"] = torch.from_numpy(image), hwc(F.hflip(pil(image)))
    padded = F.pad(pil(image), [2, 2, 2, 2])
    tensors["padded.out"] = hwc(padded)
    versions = {"pillow": Image.__version__, "torch": torch.__version__}
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, os.path.join(OUT, "transforms.safetensors"), versions)


def interop():
    path = os.path.join(OUT, "interop-000.tar")
    with wds.TarWriter(path, mtime=0) as shard:
        for i in range(5):
            buffer = io.BytesIO()
            pil(picture(6, 4, 3)).save(buffer, "PNG")
            sample = {"__key__": f"folder/{i:03d}", "PNG": buffer.getvalue(), "json": json.dumps({"label": i * 3, "name": "é"}).encode()}
            if i % 2:
                sample["seg.txt"] = b"text %d" % i
            shard.write(sample)
        shard.write({"__key__": "a.dir/last", "cls": b"7", "png": b"not an image"})
    read = [{k: (v if isinstance(v, str) else v.hex()) for k, v in sample.items() if k in ("__key__",) or not k.startswith("__")}
            for sample in wds.WebDataset(path, shardshuffle=False)]
    with open(os.path.join(OUT, "interop.json"), "w") as file:
        json.dump(read, file, indent=1)


def digits():
    """The held-out digits as webdataset and Pillow read them, in the order of the shard."""
    images, labels, keys = [], [], []
    for sample in wds.WebDataset(os.path.join(ROOT, "data", "digits", "test-000.tar"), shardshuffle=False):
        images.append(np.array(Image.open(io.BytesIO(sample["png"]))))
        labels.append(int(sample["cls"]))
        keys.append(int(sample["__key__"]))
    save_file({"image": torch.from_numpy(np.stack(images)), "label": torch.tensor(labels), "key": torch.tensor(keys)},
              os.path.join(OUT, "digits_test.safetensors"))


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    transforms()
    interop()
    digits()
