"""Writes the reference files of tests/goldens/io from the original packages: torch, safetensors, webdataset, Pillow.

    python tools/goldens/io.py                     writes the goldens
    python tools/goldens/io.py --verify FOLDER     reads back what `io_test` wrote there (environment variable BELLOWS_IO_OUT)
"""

import argparse
import collections
import io
import json
import pathlib
import struct
import tarfile
import unittest.mock
import zipfile

import numpy as np
import safetensors
import safetensors.torch
import torch
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "io"


def tricky_value():
    """What torch_test.cpp checks piece by piece."""
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    parameter = torch.nn.Parameter(torch.tensor([1.5, -2.5], dtype=torch.float64))
    return {
        "base": base,
        "transposed": base.transpose(0, 2),
        "tail": base[1, 1:],
        "channels_last": torch.arange(48, dtype=torch.float16).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
        "bf16": torch.tensor([1.0, -3.140625, float("inf")], dtype=torch.bfloat16),
        "bool": torch.tensor([[True, False], [False, True]]),
        "int64": torch.tensor([-(2**62), 0, 2**62]),
        "uint8": torch.arange(5, dtype=torch.uint8),
        "complex": torch.tensor([1 + 2j, -3.5j], dtype=torch.complex64),
        "uint16": torch.tensor([0, 65535], dtype=torch.uint16),
        "fp8": torch.tensor([0.5, -448.0]).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(7, dtype=torch.int32),
        "empty": torch.empty(0, 3),
        "expanded": torch.tensor([5.0]).expand(4),
        "parameter": parameter,
        "none": None,
        "true": True,
        "int": -5,
        "big": 2**40,
        "negative": -(2**63),
        "float": 0.1,
        "text": "naïve “text” \U0001f525",
        "bytes": bytes(range(256)),
        "no_bytes": b"",
        "list": [1, [2.5, "x"], (3, None)],
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        3: "int key",
        ("k", 1): "tuple key",
        "size": torch.Size([4, 5]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "set": {17},
    }


def optimizer_state():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.LazyLinear(3))
    model(torch.randn(2, 1, 5, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 1, 5, 5)).square().sum().backward()
        optimizer.step()
    return {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}


def rezip(source, target, change):
    """Copies a torch.save file, stored, with `change(name, data)` applied to every entry."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            new.writestr(zipfile.ZipInfo(info.filename), change(info.filename, old.read(info)))


def write_2017():
    """As PyTorch 0.1 wrote state dicts: `_rebuild_tensor` with four arguments. torch.load still reads them."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    state = collections.OrderedDict(
        [
            ("features.0.weight", base),
            ("features.0.transposed", base.transpose(0, 2)),
            ("half", torch.arange(5, dtype=torch.float16)),
            ("empty", torch.empty(0, 3)),
            ("count", torch.tensor(2**40)),
        ]
    )

    def reduce(tensor, _):
        return torch._utils._rebuild_tensor, (tensor.storage(), tensor.storage_offset(), tuple(tensor.size()), tensor.stride())

    with unittest.mock.patch.object(torch.Tensor, "__reduce_ex__", reduce):
        torch.save(state, OUT / "legacy_2017.pt", _use_new_zipfile_serialization=False)
    loaded = torch.load(OUT / "legacy_2017.pt")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def write_torch():
    write_2017()
    torch.save(tricky_value(), OUT / "tricky.pt")
    torch.save(optimizer_state(), OUT / "training.pt")
    torch.save({"w": torch.arange(3.0), "nested": {"v": torch.ones(2)}}, OUT / "mixed.pt")
    torch.save(torch.arange(6.0).reshape(2, 3), OUT / "tensor.pt")
    torch.save({"w": torch.arange(4.0), "v": torch.tensor([1, 2], dtype=torch.int16)}, OUT / "flat.pt")
    torch.save({"w": torch.arange(4.0)}, OUT / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"when": pathlib.PurePosixPath("x")}, OUT / "foreign_class.pt")
    torch.save({"w": torch.arange(4.0), "list": [1, "two"]}, OUT / "protocol4.pt", pickle_protocol=4)
    torch.serialization.set_crc32_options(False)
    torch.save({"w": torch.arange(4.0)}, OUT / "no_crc.pt")
    torch.serialization.set_crc32_options(True)
    swapped = {"byteorder": b"big", "0": np.arange(4, dtype=">f4").tobytes(), "1": np.array([1, 2], dtype=">i2").tobytes()}
    rezip(OUT / "flat.pt", OUT / "big_endian.pt", lambda name, data: swapped.get(name.rsplit("/", 1)[-1], data))
    with zipfile.ZipFile(OUT / "flat.pt") as old, zipfile.ZipFile(OUT / "zip64.pt", "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            with new.open(zipfile.ZipInfo(info.filename), "w", force_zip64=True) as entry:
                entry.write(old.read(info))
    with zipfile.ZipFile(OUT / "flat.pt") as old, zipfile.ZipFile(OUT / "deflated.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), OUT / "script.pt")
    with zipfile.ZipFile(OUT / "other.zip", "w") as new:
        new.writestr("readme.txt", "not tensors")


def named_tensors():
    return {
        "b.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
        "a.weight": torch.arange(6, dtype=torch.float32).reshape(3, 2) - 2,
        "half": torch.tensor([0.5, -1.0], dtype=torch.float16),
        "brain": torch.tensor([[1.0], [-3.140625]], dtype=torch.bfloat16),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "i8": torch.tensor([-128, 127], dtype=torch.int8),
        "i16": torch.tensor([-32768], dtype=torch.int16),
        "i32": torch.tensor([2**31 - 1], dtype=torch.int32),
        "i64": torch.tensor([-(2**63)]),
        "u8": torch.arange(3, dtype=torch.uint8),
        "u16": torch.tensor([65535], dtype=torch.uint16),
        "u32": torch.tensor([2**32 - 1], dtype=torch.uint32),
        "u64": torch.tensor([2**63], dtype=torch.uint64),
        "flag": torch.tensor([True, False, True]),
        "c64": torch.tensor([1 - 2j], dtype=torch.complex64),
        "fp8": torch.tensor([0.5, -448.0]).to(torch.float8_e4m3fn),
        "fp8b": torch.tensor([0.5, -448.0]).to(torch.float8_e5m2),
        "empty": torch.empty(0, 3),
        'quote"d\\\n\u00fc': torch.ones(1),
    }


def write_safetensors():
    safetensors.torch.save_file(named_tensors(), OUT / "all.safetensors", metadata={"format": "pt \u00fc"})
    safetensors.torch.save_file({"w": torch.arange(4.0)}, OUT / "small.safetensors")


def picture(height, width, channels, bits=8):
    """A smooth picture with an edge, the same on every machine."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * (5 + 3 * c) + y * (9 - 2 * c) + 40 * c + 90 * (x > y)) % 256 for c in range(channels)]
    image = np.stack(planes, -1)
    return (image * 257 + x[..., None] % 251).astype(np.uint16) if bits == 16 else image.astype(np.uint8)


def png_chunks(width, height, bits, color, rows, interlace=0, extra=b""):
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def interlaced(image):
    """Adam7, which Pillow does not write."""
    rows = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = image[y0::dy, x0::dx]
        if part.size:
            rows += b"".join(b"\0" + row.tobytes() for row in part)
    return png_chunks(image.shape[1], image.shape[0], 8, 2, rows, interlace=1)


def write_pngs(folder):
    height, width = 13, 17
    rgb = Image.fromarray(picture(height, width, 3))
    gray = Image.fromarray(picture(height, width, 1)[..., 0])
    alpha = Image.fromarray(picture(height, width, 4), "RGBA")
    rgb.save(folder / "rgb.png")
    gray.save(folder / "gray.png")
    alpha.save(folder / "rgba.png")
    Image.fromarray(picture(height, width, 2), "LA").save(folder / "gray_alpha.png")
    rgb.quantize(16).save(folder / "palette4.png")
    rgb.quantize(200).save(folder / "palette8.png")
    transparent = rgb.quantize(16)
    transparent.save(folder / "palette_alpha.png", transparency=bytes(range(0, 256, 16)))
    gray.point(lambda v: 255 * (v > 127)).convert("1").save(folder / "bits1.png")
    gray.save(folder / "gray_key.png", transparency=40)
    (folder / "interlaced.png").write_bytes(interlaced(picture(height, width, 3)))
    deep = picture(height, width, 3, bits=16).astype(">u2")
    (folder / "rgb16.png").write_bytes(png_chunks(width, height, 16, 2, b"".join(b"\0" + row.tobytes() for row in deep)))
    deep = picture(height, width, 1, bits=16).astype(">u2")
    (folder / "gray16.png").write_bytes(png_chunks(width, height, 16, 0, b"".join(b"\0" + row.tobytes() for row in deep)))


def write_jpegs(folder):
    height, width = 37, 29
    rgb, gray = Image.fromarray(picture(height, width, 3)), Image.fromarray(picture(height, width, 1)[..., 0])
    rgb.save(folder / "420.jpg", quality=90)
    rgb.save(folder / "444.jpg", quality=75, subsampling=0)
    rgb.save(folder / "422.jpg", quality=75, subsampling=1)
    rgb.save(folder / "progressive.jpg", quality=80, progressive=True)
    gray.save(folder / "gray.jpg", quality=85)
    Image.fromarray(picture(height, width, 4), "CMYK").save(folder / "cmyk.jpg", quality=85)


def decoded(path):
    """The three modes of bellows::io::ColorMode, by Pillow."""
    def load(mode):
        image = Image.open(path)
        if path.suffix == ".jpg" and mode == "L" and image.mode == "RGB":
            image.draft("L", image.size)  # the luma of the file, without the way over RGB
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image

    keep = load("")
    has_alpha = keep.mode in ("RGBA", "LA") or "transparency" in keep.info
    if keep.mode == "CMYK":
        keep = keep.convert("RGB")
    elif keep.mode == "P":
        keep = keep.convert("RGBA" if has_alpha else "RGB")
    elif keep.mode == "1" or (keep.mode == "L" and has_alpha):
        keep = keep.convert("LA" if has_alpha else "L")
    result = {"rgb": load("RGB").convert("RGB"), "gray": load("L").convert("RGB" if keep.mode == "CMYK" else "L"), "keep": keep}
    if Image.open(path).mode == "CMYK":
        result["gray"] = result["rgb"].convert("L")
    elif Image.open(path).mode in ("RGBA", "P"):
        result["gray"] = load("RGB").convert("RGB").convert("L")
    arrays = {mode: np.asarray(image).reshape(image.size[1], image.size[0], -1) for mode, image in result.items()}
    return {mode: torch.from_numpy(array.astype(np.uint8).copy()) for mode, array in arrays.items()}


def write_images():
    folder = OUT / "images"
    folder.mkdir(exist_ok=True)
    write_pngs(folder)
    write_jpegs(folder)
    pixels = {}
    for path in sorted(folder.iterdir()):
        for mode, tensor in decoded(path).items():
            pixels[f"{path.name}:{mode}"] = tensor
    safetensors.torch.save_file(pixels, OUT / "pixels.safetensors")


def write_shards():
    import webdataset

    with webdataset.TarWriter(str(OUT / "shard.tar"), mtime=0) as writer:
        for i in range(3):
            writer.write({"__key__": f"train/{i:04d}", "cls": i, "bin": bytes([i]) * (i * 700), "json": {"i": i}})
    with webdataset.TarWriter(str(OUT / "shard.tar.gz"), mtime=0) as writer:
        writer.write({"__key__": "a", "txt": "packed"})
    for name, style in (("gnu.tar", tarfile.GNU_FORMAT), ("pax.tar", tarfile.PAX_FORMAT)):
        with tarfile.open(OUT / name, "w", format=style) as archive:
            for member in ("folder", "folder/" + "long" * 40 + "/" + "n" * 120 + ".txt", "plain.ä.txt", "link"):
                info = tarfile.TarInfo(member)
                info.type = {"folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}.get(member, tarfile.REGTYPE)
                info.linkname = "plain" if member == "link" else ""
                data = member.encode() if info.isreg() else b""
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def verify(folder):
    """Reads with the original packages what bellows wrote, and compares with what it was meant to be."""
    ours, theirs = safetensors.torch.load_file(folder / "all.safetensors"), named_tensors()
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype and ours[key].shape == value.shape, key
        assert ours[key].reshape(-1).view(torch.uint8).equal(value.reshape(-1).view(torch.uint8)), key
    assert (folder / "all.safetensors").read_bytes() == (OUT / "all.safetensors").read_bytes(), "differs from the official writer's bytes"
    with safetensors.safe_open(folder / "channels_last.safetensors", "pt") as file:
        assert json.loads(file.metadata()["bellows.memory_format"]) == {"w": "channels_last"}
        assert file.get_tensor("w").equal(torch.arange(48.0).reshape(2, 3, 2, 4))

    ours, theirs = torch.load(folder / "tricky.pt", weights_only=True, map_location="cpu"), tricky_value()
    assert list(ours) == list(theirs), (list(ours), list(theirs))
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert ours[key].dtype == value.dtype and ours[key].stride() == value.stride() and ours[key].shape == value.shape, key
            same = ours[key].contiguous().flatten().view(torch.uint8).equal(value.detach().contiguous().flatten().view(torch.uint8))
            assert same and ours[key].requires_grad == value.requires_grad, key
        elif key == "set":
            assert ours[key] == [17] or ours[key] == (17,), key
        else:
            assert ours[key] == value, (key, ours[key], value)
    assert type(ours["ordered"]) is collections.OrderedDict
    pointers = {ours[key].untyped_storage().data_ptr() for key in ("base", "transposed", "tail")}
    assert len(pointers) == 1, "shared storage came apart"
    mapped = torch.load(folder / "tricky.pt", weights_only=True, mmap=True, map_location="cpu")
    assert mapped["base"].equal(theirs["base"]) and mapped["base"].data_ptr() % 64 == 0

    state = torch.load(folder / "training.pt", weights_only=True)
    expected = optimizer_state()
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(18, 3))
    model.load_state_dict(state["state_dict"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(state["optimizer"])
    assert optimizer.state_dict()["state"][0]["exp_avg"].equal(expected["optimizer"]["state"][0]["exp_avg"])

    with tarfile.open(folder / "names.tar") as archive:
        for member in archive.getmembers():
            assert archive.extractfile(member).read() == member.name.encode(), member.name
            assert member.mode == 0o444 and member.uname == "bigdata"
    import webdataset

    samples = list(webdataset.WebDataset(str(folder / "shard.tar"), shardshuffle=False))
    assert [s["__key__"] for s in samples] == [f"train/{i:04d}" for i in range(3)], samples
    assert all(s["bin"] == bytes([i]) * (i * 700) for i, s in enumerate(samples))
    assert (folder / "shard.tar").read_bytes() == (OUT / "shard.tar").read_bytes(), "differs from webdataset's bytes"
    for name in ("rgb", "gray", "rgba", "gray_alpha"):
        assert np.array_equal(np.asarray(Image.open(folder / f"{name}.png")), np.asarray(Image.open(OUT / "images" / f"{name}.png"))), name
    Image.open(folder / "rgb.jpg").load()
    print("all files read back by", "torch", torch.__version__, "safetensors", safetensors.__version__, "webdataset", webdataset.__version__)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.verify:
        return verify(arguments.verify)
    OUT.mkdir(parents=True, exist_ok=True)
    write_torch()
    write_safetensors()
    write_images()
    write_shards()
    for path in OUT.glob("*.safetensors"):
        path.chmod(0o644)
    versions = {"torch": torch.__version__, "safetensors": safetensors.__version__, "pillow": Image.__version__}
    (OUT / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main()
