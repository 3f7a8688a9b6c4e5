"""A training loop with metrics in every step: torchmetrics and scikit-learn, the peers of bench/metrics/bench_metrics.cpp."""

import argparse
import time

import numpy as np
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
import torchmetrics.classification as tc
from torch import nn
from torchmetrics import MetricCollection

from formula_weights import labels, set_formula_weights, uniform
from protocol import serve


class Sklearn:
    """Stores all predictions and computes the metrics over them, like loops without a metrics library."""

    def __init__(self):
        self.preds, self.targets = [], []

    def update(self, logits, target):
        self.preds.append(logits.argmax(1).numpy())
        self.targets.append(target.numpy())

    def read(self):
        preds, targets = np.concatenate(self.preds), np.concatenate(self.targets)
        macro = {"average": "macro", "zero_division": 0}
        return [sk.accuracy_score(targets, preds), sk.precision_score(targets, preds, **macro), sk.recall_score(targets, preds, **macro),
                sk.f1_score(targets, preds, **macro), sk.jaccard_score(targets, preds, **macro)]


class TorchMetrics:
    def __init__(self, classes, checked, auroc):
        shared = {"num_classes": classes, "validate_args": checked}
        self.metrics = MetricCollection(
            {"auroc": tc.MulticlassAUROC(thresholds=100, **shared)} if auroc else
            {"accuracy": tc.MulticlassAccuracy(average="micro", **shared), "precision": tc.MulticlassPrecision(**shared),
             "recall": tc.MulticlassRecall(**shared), "f1": tc.MulticlassF1Score(**shared), "iou": tc.MulticlassJaccardIndex(**shared)})
        self.order = ["auroc"] if auroc else ["accuracy", "precision", "recall", "f1", "iou"]

    def update(self, logits, target):
        self.metrics.update(logits, target)

    def read(self):
        values = self.metrics.compute()
        return [values[name].item() for name in self.order]


def main():
    flags = argparse.ArgumentParser()
    for name in ("batch", "features", "width", "classes", "steps", "batches"):
        flags.add_argument("--" + name, type=int, required=True)
    flags.add_argument("--lr", type=float, required=True)
    flags = flags.parse_args()
    net = set_formula_weights(nn.Sequential(nn.Linear(flags.features, flags.width), nn.ReLU(), nn.Linear(flags.width, flags.width),
                                            nn.ReLU(), nn.Linear(flags.width, flags.classes)))
    optimizer = torch.optim.SGD(net.parameters(), lr=flags.lr)
    inputs = [uniform(f"input{i}", (flags.batch, flags.features)).float() for i in range(flags.batches)]
    targets = [labels(f"labels{i}", flags.batch, flags.classes) for i in range(flags.batches)]
    done = 0

    def make(name):
        if name == "sklearn":
            return Sklearn()
        return TorchMetrics(flags.classes, not name.endswith("unchecked"), "auroc" in name)

    kept = {}

    def step():
        nonlocal done
        i, done = done % flags.batches, done + 1
        optimizer.zero_grad()
        logits = net(inputs[i])
        F.cross_entropy(logits, targets[i]).backward()
        optimizer.step()
        return logits.detach(), targets[i]

    def run(count):
        for _ in range(count):
            step()

    def update_after_step(metrics):
        logits, target = step()
        start = time.perf_counter()
        metrics.update(logits, target)
        return time.perf_counter() - start

    def updates(name, count):
        metrics = kept.setdefault(name, make(name))
        return [sum(update_after_step(metrics) for _ in range(int(count)))]

    def grow(name, window):
        window, metrics, first, last = int(window), make(name), 0.0, 0.0
        for i in range(flags.steps):
            seconds = update_after_step(metrics)
            if window <= i < flags.steps - window:
                continue
            start = time.perf_counter()
            metrics.read()
            seconds += time.perf_counter() - start
            if i < window:
                first += seconds / window
            else:
                last += seconds / window
        return [first, last]

    def final(name, count):
        metrics = make(name)
        for i in range(int(count)):
            logits = uniform(f"logits{i}", (flags.batch, flags.classes)) * 8
            metrics.update(logits.float(), labels(f"labels{i}", flags.batch, flags.classes))
        return metrics.read()

    serve(run, {"updates": updates, "grow": grow, "final": final})


if __name__ == "__main__":
    main()
