"""What the paper reports. F. Mai, A. Pannatier, F. Fehr, H. Chen, F. Marelli, F. Fleuret, J. Henderson: HyperMixer: An MLP-based Low
Cost Alternative to Transformers, ACL 2023 (arXiv 2203.03691). Tables as printed; figures read off the curves, so the last digit is
uncertain. Accuracies are percent, on validation data."""

from __future__ import annotations

TASKS = ("mnli", "snli", "qqp", "qnli", "sst2")  # in the order of the paper's columns
TITLES = {"mnli": "MNLI", "snli": "SNLI", "qqp": "QQP", "qnli": "QNLI", "sst2": "SST-2"}
TRAIN_ROWS = {"mnli": 392_702, "snli": 549_367, "qqp": 363_846, "qnli": 104_743, "sst2": 67_349}
SEEDS = 10

RATES = (1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5)  # Appendix: the grid of learning rates

# Table 1 and Table 5: mean (standard deviation over seeds); Table 5 is printed without.
TABLE_1: dict[str, tuple[tuple[float, float], ...]] = {
    "fnet": ((59.7, 0.27), (75.3, 0.46), (79.4, 0.28), (59.9, 0.46), (79.7, 0.71)),
    "linear": ((66.9, 0.48), (82.7, 0.22), (81.7, 0.28), (61.3, 0.29), (80.5, 0.46)),
    "transformer": ((65.4, 0.51), (80.9, 0.40), (82.8, 0.22), (67.3, 2.03), (79.0, 0.86)),
    "mlpmixer": ((63.9, 0.34), (79.6, 0.11), (83.7, 0.42), (68.1, 2.10), (80.1, 0.67)),
    "gmlp": ((60.8, 0.95), (80.5, 0.55), (82.8, 0.21), (60.5, 0.49), (78.7, 0.74)),
    "hypermixer": ((66.2, 0.21), (81.9, 0.27), (85.6, 0.20), (78.0, 0.19), (80.7, 0.84)),
}
TABLE_5: dict[str, tuple[float, ...]] = {
    "feature-only": (54.5, 67.0, 75.9, 60.8, 79.7),
    "token-only": (59.0, 74.5, 79.5, 61.8, 76.3),
    "shared-vector": (57.1, 74.3, 82.9, 65.9, 79.8),
    "untied": (65.8, 81.7, 84.8, 73.3, 80.3),
    "hypermixer": (66.2, 81.9, 85.6, 78.0, 80.7),
}
# Table 3: the best learning rate of one seed.
TABLE_3: dict[str, tuple[float, ...]] = {
    "fnet": (5e-4, 1e-3, 1e-3, 5e-4, 1e-3),
    "linear": (1e-3, 1e-3, 5e-4, 1e-4, 2e-4),
    "transformer": (2e-4, 2e-4, 2e-4, 5e-4, 5e-4),
    "mlpmixer": (1e-3, 1e-3, 1e-3, 5e-5, 1e-3),
    "gmlp": (1e-3, 2e-4, 5e-4, 5e-5, 1e-4),
    "hypermixer": (1e-4, 2e-4, 1e-4, 5e-5, 5e-4),
    "feature-only": (1e-3, 5e-4, 1e-3, 1e-3, 5e-4),
    "token-only": (2e-4, 2e-4, 2e-4, 2e-4, 5e-4),
    "shared-vector": (5e-4, 1e-3, 1e-3, 5e-5, 1e-3),
    "untied": (1e-3, 1e-3, 1e-3, 5e-5, 1e-3),
}

LAYOUTS = ("serialized", "post", "pre", "rezero", "parallel")
# Table 6: the best of the grid, mean of the five tasks, by layout.
TABLE_6: dict[str, tuple[float, ...]] = {
    "attention": (75.79, 76.68, 76.80, 69.39, 76.43),
    "hypermixing-none": (78.69, 76.32, 72.65, 46.20, 73.82),
    "hypermixing-length": (78.43, 76.33, 77.58, 51.38, 77.60),
    "hypermixing-layer": (78.36, 77.12, 77.45, 77.26, 77.74),
}

# Figure 2: seconds of 1,000 forward passes of one token-mixing layer, d = 256, d' = 512.
FIGURE_2_LENGTHS = (64, 125, 250, 500, 1000, 2000, 4000)
FIGURE_2_TIMES: dict[str, tuple[float, ...]] = {
    "hypermixing": (4.63, 4.78, 4.81, 4.99, 5.12, 6.22, 6.94),
    "attention": (7.12, 7.16, 7.64, 7.36, 7.73, 9.28, 15.68),
}

# Figure 3: how much better than the Transformer HyperMixer is, in % of the Transformer's accuracy, by share of the training data.
FRACTIONS = (0.05, 0.1, 0.25, 0.5, 1.0)
FIGURE_3: dict[str, tuple[float, ...]] = {
    "mnli": (11.8, 11.7, 9.2, 7.7, 1.4),
    "snli": (13.2, 13.7, 4.3, 0.6, 1.3),
    "qqp": (4.8, 5.0, 5.1, 4.3, 3.3),
}

# Figure 4: the same gain in expected validation performance, by number of trials of a random search.
TRIALS = (1, 2, 5, 10, 20)
FIGURE_4: dict[str, tuple[float, ...]] = {
    "mnli": (2.3, 3.5, 4.2, 3.0, 1.7),
    "snli": (6.6, 5.9, 3.5, 2.2, 1.6),
    "qqp": (5.1, 5.1, 4.1, 3.2, 2.5),
    "qnli": (7.3, 11.4, 15.2, 14.3, 10.8),
    "sst2": (2.9, 1.8, 0.7, 0.7, 0.5),
}
