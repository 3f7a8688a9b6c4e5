"""Writes tests/goldens/interop/beton with FFCV's own writer: .beton files (packed by gzip, for a page has 2 MiB at least) and, as
JSON, what FFCV's reader gives for them. Run: .deps/interop/bin/python tools/goldens/beton.py
With --verify FOLDER: reads what tests/interop/beton_test.cpp wrote there with FFCV's reader and loader.
Made with ffcv 1.0.2, numpy 2.1.3, torch 2.11.0."""

import gzip
import json
import os
import sys

import numpy as np
import torch
from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField
from ffcv.fields.decoders import CenterCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.memory_managers import OSCacheManager
from ffcv.reader import Reader
from ffcv.writer import DatasetWriter

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT = os.path.join(ROOT, "tests", "goldens", "interop", "beton")
PAGE = 1 << 21
DTYPES = ["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"]


def picture(seed, height, width):
    """Soft colours with a little noise."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([20 * y + seed, 15 * x + 3 * seed, 10 * (x + y)], axis=-1) % 256
    return np.clip(base + random.randint(0, 9, base.shape), 0, 255).astype(np.uint8)


def large_picture(seed):
    """700 x 700: one to a page. Compresses well."""
    return np.full((700, 700, 3), 10 + 30 * seed, dtype=np.uint8)


def mixed():
    """All types of fields; images of several sizes, some JPEG, some raw."""
    fields = {
        "image": RGBImageField(write_mode="proportion", compress_probability=0.5),
        "label": IntField(),
        "weight": FloatField(),
        "box": NDArrayField(np.dtype("<f4"), (2, 3)),
        "meta": JSONField(),
        "text": BytesField(),
        "mask": TorchTensorField(torch.uint8, (5,)),
    }
    samples = []
    for i in range(13):
        samples.append((picture(i, 4 + i % 5, 3 + i % 7), i * i - 5, i / 7, np.arange(6, dtype="<f4").reshape(2, 3) + i,
                        {"i": i, "name": "é" * (i % 3)}, np.frombuffer(b"text %d" % i * (1 + i % 4), dtype="u1"),
                        torch.arange(5, dtype=torch.uint8) + i))
    return fields, samples, 1


def numbers():
    """Nothing in pages at all."""
    return {"label": IntField(), "weight": FloatField()}, [(i - 2, i * 0.1) for i in range(5)], 1


def empty():
    """Values of no bytes, whose pointers FFCV lets coincide with others."""
    texts = [b"", b"", b"abc", b""]
    samples = [(np.frombuffer(t, dtype="u1"), picture(i, 3, 3), np.frombuffer(t, dtype="u1")) for i, t in enumerate(texts)]
    return {"first": BytesField(), "image": RGBImageField(write_mode="jpg"), "last": BytesField()}, samples, 1


def arrays():
    fields = {name: NDArrayField(np.dtype(name), (2, 1)) for name in DTYPES}
    samples = [tuple((np.arange(2).reshape(2, 1) + i).astype(name) for name in DTYPES) for i in range(3)]
    return fields, samples, 1


def pages():
    """Several pages from two processes, in whatever order these were."""
    return {"image": RGBImageField(write_mode="raw"), "label": IntField()}, [(large_picture(i), i) for i in range(6)], 2


def rows():
    """A row of two images and a number, which NumPy aligns."""
    samples = [(picture(i, 2, 3), picture(i + 9, 3, 2), i) for i in range(3)]
    return {"left": RGBImageField(write_mode="raw"), "right": RGBImageField(write_mode="raw"), "label": IntField()}, samples, 1


def narrow():
    """A row without anything to align."""
    return {"image": RGBImageField(write_mode="raw")}, [(picture(i, 2, 2),) for i in range(3)], 1


class Samples:
    def __init__(self, samples):
        self.samples = samples

    def __getitem__(self, i):
        return self.samples[i]

    def __len__(self):
        return len(self.samples)


def write(path, fields, samples, workers):
    np.random.seed(3)  # the writer's process inherits it: which images become JPEG
    DatasetWriter(path, fields, page_size=PAGE, num_workers=workers).from_indexed_dataset(Samples(samples), chunksize=1)


def compiled_once(manager, compiled=[]):
    """FFCV's function that looks a pointer up; it is the same for all files."""
    if not compiled:
        compiled.append(manager.compile_reader())
    return compiled[0]


def read(path):
    """What FFCV's reader and memory manager find: for each sample its fields."""
    reader = Reader(path)
    manager = OSCacheManager(reader)
    fetch = compiled_once(manager)
    result = []
    with manager.schedule_epoch([]) as _:
        pass
    state = manager.context.state
    columns = list(zip(reader.metadata.dtype.names, reader.handlers.items()))
    for row in reader.metadata:
        sample = {}
        for column, (name, handler) in columns:
            value = row[column]
            if isinstance(handler, (IntField, FloatField)):
                sample[name] = value.item()
            elif isinstance(handler, RGBImageField):
                data = fetch(value["data_ptr"], state)
                sample[name] = {"jpg": bool(value["mode"] == 0), "size": [int(value["height"]), int(value["width"])]}
                if len(data) > 10000:
                    sample[name]["sum"] = int(np.asarray(data, dtype="u8").sum())
                else:
                    sample[name]["hex"] = data.tobytes().hex()
            elif isinstance(handler, NDArrayField):
                sample[name] = {"type": handler.dtype.str, "shape": [int(n) for n in handler.shape], "hex": fetch(value, state).tobytes().hex()}
            else:
                data = fetch(value["ptr"], state).tobytes()[: int(value["size"])] if value["size"] else b""
                sample[name] = data.hex()
        result.append(sample)
    return {"page_size": int(reader.page_size), "samples": result}


def expected(name, samples, found):
    """`found`; but what was written for `empty`: FFCV looks sizes up by pointers and takes those of other values there."""
    if name == "empty":
        for sample, (first, image, last) in zip(found["samples"], samples):
            sample.update(first=first.tobytes().hex(), last=last.tobytes().hex(), image={"jpg": True, "size": list(image.shape[:2])})
    return found


def load(path):
    """All that FFCV's loader makes of the file, images cropped to one size."""
    loader = Loader(path, batch_size=4, num_workers=1, os_cache=True, order=OrderOption.SEQUENTIAL, drop_last=False,
                    pipelines={"image": [CenterCropRGBImageDecoder((8, 8), ratio=1)]})
    batches = [[np.asarray(part).copy() for part in batch] for batch in loader]
    return {name: np.concatenate(parts) for name, parts in zip(loader.reader.handlers, zip(*batches))}


def make():
    os.makedirs(OUT, exist_ok=True)
    for maker in (mixed, numbers, empty, arrays, pages, rows, narrow):
        name = maker.__name__
        path = os.path.join(OUT, name + ".beton")
        fields, samples, workers = maker()
        write(path, fields, samples, workers)
        with open(os.path.join(OUT, name + ".json"), "w") as file:
            found = expected(name, samples, read(path))
            lines = ",\n".join(json.dumps(sample) for sample in found["samples"])
            file.write('{"page_size": %d, "samples": [\n%s\n]}\n' % (found["page_size"], lines))
        with open(path, "rb") as plain, open(path + ".gz", "wb") as packed:
            packed.write(gzip.compress(plain.read(), mtime=0))
        os.remove(path)


def wanted(name):
    with open(os.path.join(OUT, name + ".json")) as file:
        return json.load(file)


def verify(folder):
    for name in ("mixed", "numbers", "pages", "rows", "narrow", "arrays"):
        assert read(os.path.join(folder, name + ".beton")) == wanted(name), name
    empty = read(os.path.join(folder, "empty.beton"))["samples"]
    for found, sample in zip(empty, wanted("empty")["samples"], strict=True):
        assert found["first"] == sample["first"] and found["last"] == sample["last"], (found, sample)
        assert found["image"]["hex"].startswith("ffd8") and found["image"]["hex"].endswith("ffd9"), found
    grown = read(os.path.join(folder, "grown.beton"))["samples"]
    assert len(grown) == 100_000
    for i, sample in enumerate(grown):
        assert sample == {"label": i, "text": (b"%d" % i * (1 + i % 40)).hex()}, (i, sample)
    loaded = load(os.path.join(folder, "mixed.beton"))
    assert loaded["image"].shape == (13, 8, 8, 3), loaded["image"].shape
    for i, sample in enumerate(wanted("mixed")["samples"]):
        assert loaded["label"][i] == sample["label"] and loaded["weight"][i] == sample["weight"], i
        for name in ("box", "mask"):
            assert loaded[name][i].tobytes().hex() == sample[name]["hex"], i
        for name in ("meta", "text"):  # what follows is padding of any content
            assert loaded[name][i].tobytes().hex().startswith(sample[name]), i
    print("beton: FFCV reads what Bellows wrote")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--verify"]:
        verify(sys.argv[2])
    else:
        make()
