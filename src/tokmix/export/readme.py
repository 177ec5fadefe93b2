"""The README of an exported folder: inputs and outputs, for users who load the graph themselves."""

from __future__ import annotations

from tokmix.runtime.folder import GRAPHS, Manifest

TORCH = """    import torch
    graph = torch.export.load("model.pt2").module()
"""
ONNX = """    import tokmix.runtime                      # pip install 'tokmix[runtime]': no torch
    model = tokmix.runtime.load("this folder")
"""
USE = {"lm": '    "".join(model.generate("Once upon a time", max_new=50))\n', "mlm": '    model.embed(["a text"])\n'}


def readme(about: Manifest) -> str:
    if about.task == "lm":
        chunk = "1" if about.chunk == 1 else "any number"
        shapes = [
            f"- in: `ids` int64 [B, T], `mask` bool [B, T], `state_0` ... `state_{len(about.states) - 1}` as `manifest.json` lists them;"
            f" T: {chunk} of tokens, padding behind them",
            "- out: `logits` after each row's last token [B, vocab], then the new states in the same order",
        ]
    else:
        logits = f"`outputs` [B, {len(about.labels)}] (logits), "
        outputs = {"classify": logits, "multilabel": logits, "regress": "`outputs` [B] (scores), "}.get(about.task, "")
        shapes = [
            f"- in: `ids` int64 [B, T], `mask` bool [B, T] (True: a token; padding stands behind them); T up to {about.max_len}",
            f"- out: {outputs}`pooled` [B, {about.dim}] (embeddings)",
        ]
    use = TORCH if about.format == "torch" else ONNX + USE.get(about.task, '    model.predict(["a text"])\n')
    worst = max((one.difference for one in about.checks), default=0.0)
    checked = f"Checked against torch at {len(about.checks)} shapes: the largest difference is {worst:.1e}."
    before = "" if about.truncate else f", behind the end-of-text token ({about.roles['eot']})"
    size = "int8 weights and products" if about.int8 else "float32"
    return (
        f"# {about.task}: {about.stack}\n\n`{GRAPHS[about.format]}`, {size}, exported by tokmix {about.tokmix}. {checked}\n\n"
        + "\n".join(shapes) + f"\n\nTexts become ids by `tokenizer.json`{before}. `manifest.json` has labels, columns, checksums.\n\n{use}"
    )  # fmt: skip
