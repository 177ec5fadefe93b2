"""The commands of `tokmix`, one file each: ABOUT (a line of help), add(parser), run(options) -> exit code,
and FIRST, the options that --help shows, for commands with many options.

A file imports what it needs inside run(), so that --help is quick and needs no torch.
"""

from __future__ import annotations

COMMANDS = (
    "prepare", "pretrain", "distill", "embed-train", "train", "transfer", "eval", "predict", "embed", "generate", "tune",
    "compare", "explain", "report", "export", "serve", "play", "list", "show", "doctor", "check", "new-mixer", "cost",
    "verify", "audit", "kernels", "demo", "bench", "papers",
)  # fmt: skip
